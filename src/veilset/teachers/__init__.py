"""Teachers: classifiers of private images, trained by DP-SGD, that label and guide everything made afterwards.

`config` and `planning` load no torch; `fitting` and `teacher` do.
"""
