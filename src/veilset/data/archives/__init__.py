"""Archives as hospitals keep them: messy folders, DICOM and NIfTI files, and a table that says what they show."""
