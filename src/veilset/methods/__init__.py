"""Methods: one algorithm a folder. The registry names them; nothing here loads torch until a method is asked for."""

from veilset.core.registry import Registry
from veilset.methods.base import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "dfd": "veilset.methods.dfd.config:Dfd",
        "dpaf": "veilset.methods.dpaf.config:Dpaf",
        "dpgan": "veilset.methods.dpgan.config:Dpgan",
        "evolve": "veilset.methods.evolve.config:Evolve",
        "imgsyn": "veilset.methods.imgsyn.config:Imgsyn",
        "latent": "veilset.methods.latent.config:Latent",
        "merf": "veilset.methods.merf.config:Merf",
        "pate": "veilset.methods.pate.config:Pate",
        "pldk": "veilset.methods.pldk.config:Pldk",
        "sanitized_gan": "veilset.methods.sanitized_gan.config:SanitizedGan",
    },
)
