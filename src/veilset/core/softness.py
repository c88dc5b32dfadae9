"""How soft the labels of a release are."""

_BY_DEFAULT = 4.0


def label_temperature(setting: float, classes: int) -> float:
    """The temperature of soft labels: the setting, or where that is 0 one that suits the number of classes.

    Softer labels say more of the classes that an image is not of, which is most of what a student learns from images of
    something else. Of two classes there is no more to say.
    """
    return setting or (_BY_DEFAULT if classes > 2 else 1.0)
