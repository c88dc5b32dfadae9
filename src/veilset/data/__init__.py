"""Readers of labelled images, the in-memory `ImageSet`, and the check that public data is not private data.

`open_images` opens any source. What fits in one array is read into an `ImageSet`; image folders and parquet stay
on disk as `StreamedImages`. Both are `veilset.core.records.Records`.
"""

from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.data.overlap import refuse_overlap
from veilset.data.streaming import StreamedImages

__all__ = ["ImageSet", "StreamedImages", "open_images", "refuse_overlap"]
