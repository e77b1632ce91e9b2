//! Reads how the hidden states of a text's tokens become one vector, which is the text's embedding.

use serde_json::Value;

/// The path of the file in a model's directory in which `sentence-transformers` stores the method of pooling.
pub const POOLING_FILE: &str = "1_Pooling/config.json";

/// The way in which the hidden states of a text's tokens become its embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// The embedding is the hidden state of the last token, which alone has seen all other tokens. Decoders use this
    /// method unless their files name another one.
    #[default]
    Last,
    /// The embedding is the mean of all hidden states.
    Mean,
}

impl Pooling {
    /// Parses the content of [`POOLING_FILE`].
    ///
    /// # Errors
    /// Fails if the text is not JSON, or does not name exactly one method that Interbed supports. The error is the end
    /// of a sentence that begins with the name of the file.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let config: Value = serde_json::from_str(text).map_err(|error| format!("is not valid JSON: {error}"))?;
        // Newer files have a name, older ones a flag for each.
        if let Some(name) = config.get("pooling_mode").and_then(Value::as_str) {
            return Self::named(name);
        }
        let is_on = |name: &str| config.get(name).and_then(Value::as_bool) == Some(true);
        let flags =
            ["lasttoken", "mean_tokens", "cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens"];
        let mut on = flags.into_iter().filter(|name| is_on(&format!("pooling_mode_{name}")));
        match (on.next(), on.next()) {
            (None, _) => Err("says of no pooling mode that it is on".into()),
            (Some(one), None) => Self::named(one.trim_end_matches("_tokens").trim_end_matches("_token")),
            (Some(one), Some(other)) => {
                Err(format!("joins several pooling modes ({one}, {other}), which is not computed"))
            }
        }
    }

    /// Converts the value of `pooling_type` in a GGUF file.
    ///
    /// # Errors
    /// Fails if Interbed does not support the method with this number. The error is the end of a sentence that begins
    /// with the name of the metadata key.
    pub fn from_gguf(number: u64) -> Result<Self, String> {
        match number {
            // None: the user's choice.
            0 | 3 => Ok(Self::Last),
            1 => Ok(Self::Mean),
            other => Err(format!("is {other}, but only mean (1) and last token (3) are computed")),
        }
    }

    fn named(name: &str) -> Result<Self, String> {
        match name {
            "lasttoken" | "last" => Ok(Self::Last),
            "mean" => Ok(Self::Mean),
            other => Err(format!("has the pooling mode {other}, but only mean and lasttoken are computed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read() {
        let old = |mode: &str| {
            format!(r#"{{"word_embedding_dimension": 8, "pooling_mode_{mode}": true, "pooling_mode_x": false}}"#)
        };
        for (text, expected) in [
            (old("lasttoken"), Ok(Pooling::Last)),
            (old("mean_tokens"), Ok(Pooling::Mean)),
            (r#"{"pooling_mode": "mean"}"#.into(), Ok(Pooling::Mean)),
            (r#"{"pooling_mode": "lasttoken"}"#.into(), Ok(Pooling::Last)),
            (old("cls_token"), Err("pooling mode cls")),
            (r#"{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true}"#.into(), Err("several")),
            ("{}".into(), Err("no pooling mode")),
            ("{".into(), Err("not valid JSON")),
        ] {
            match (Pooling::from_json(&text), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{text}"),
                (Err(got), Err(expected)) => assert!(got.contains(expected), "{text}: {got}"),
                (got, expected) => panic!("{text}: {got:?}, not {expected:?}"),
            }
        }
        assert_eq!([0, 1, 3].map(Pooling::from_gguf), [Ok(Pooling::Last), Ok(Pooling::Mean), Ok(Pooling::Last)]);
        Pooling::from_gguf(2).expect_err("the first token has seen nothing");
    }
}
