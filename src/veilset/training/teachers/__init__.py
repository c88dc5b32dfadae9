"""Teachers: classifiers of private images, trained by DP-SGD, that label and guide everything made afterwards."""

from veilset.training.teachers.config import Recipe, TeacherConfig
from veilset.training.teachers.fitting import train_teacher
from veilset.training.teachers.planning import plan_teacher
from veilset.training.teachers.teacher import Teacher, rebuild_teacher

__all__ = ["Recipe", "Teacher", "TeacherConfig", "plan_teacher", "rebuild_teacher", "train_teacher"]
