"""Teachers: classifiers of private images, trained by DP-SGD, that label and guide everything made afterwards."""

from veilset.teachers.config import Recipe, TeacherConfig
from veilset.teachers.fitting import train_teacher
from veilset.teachers.planning import plan_teacher
from veilset.teachers.teacher import Teacher, rebuild_teacher

__all__ = ["Recipe", "Teacher", "TeacherConfig", "plan_teacher", "rebuild_teacher", "train_teacher"]
