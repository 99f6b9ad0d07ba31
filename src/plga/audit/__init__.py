"""The paper's measurements, one file a section."""
