"""How images that a generator makes are labelled and released (dpaf, dpgan, sanitized_gan)."""

from veilset.core.settings import Settings, setting
from veilset.methods.shared.choices import Labelling, Variation


class GeneratedSettings(Settings):
    """What becomes of generated images; all of it is post-processing."""

    labelling: Labelling = setting(
        "classifier",
        "What labels images: the classifier, where it has a share; the same with every class alike often, as asked for "
        "(balanced); or the class that was asked for (asked).",
    )
    variation: Variation = setting(
        "none",
        "Of generated images before the classifier labels them: more for it to tell, at no cost; crops suits pictures "
        "in colour. Nothing without a classifier.",
    )
    image_noise: float = setting(
        0.0,
        "Largest strength of noise on released images, so that no student counts on their being smooth.",
        least=0,
        below=1,
    )
