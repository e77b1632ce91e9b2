//! Hints that several tables of habits share.

/// The hint for users who give sampling options to a server.
pub const BY_REQUEST: &str = "requests say it in their JSON, such as {\"temperature\": 0.7, \"top_k\": 40, \
                              \"max_tokens\": 256}; what they leave out comes from the model's generation_config.json \
                              or GGUF file";

/// The hint about chat templates, which says where a model's own template is and how to use another.
pub const TEMPLATE: &str = "the template is the model's own, and /api/show of `interbed serve` tells it. A Hugging \
                            Face directory has it in chat_template.jinja, where it may be changed; a GGUF file has it \
                            within, and `gguf-new-metadata --chat-template-file FILE OLD.gguf NEW.gguf` of Python's \
                            gguf package writes a file with another";
