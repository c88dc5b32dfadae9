"""Methods: one algorithm a file. The registry names them; nothing here loads torch until a method is asked for."""

from veilset.core.registry import Registry
from veilset.methods.base import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "dfd": "veilset.methods.dfd:Dfd",
        "dpaf": "veilset.methods.dpaf:Dpaf",
        "dpgan": "veilset.methods.dpgan:Dpgan",
        "imgsyn": "veilset.methods.imgsyn:Imgsyn",
        "latent": "veilset.methods.latent:Latent",
        "merf": "veilset.methods.baselines.merf:Merf",
        "pate": "veilset.methods.pate:Pate",
        "pldk": "veilset.methods.pldk:Pldk",
        "sanitized_gan": "veilset.methods.sanitized_gan:SanitizedGan",
    },
)
