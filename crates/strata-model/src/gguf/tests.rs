//! Metadata that a Hugging Face directory would say otherwise.
