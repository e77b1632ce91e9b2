//! The part of an answer that a grammar constrains, and the text form in which other processes receive it.

use serde_json::{Value, json};

use crate::{GrammarSource, Trigger, json_value};

/// A grammar, and the part of an answer that it constrains. This part is the whole answer or what follows a trigger.
#[derive(Debug, Clone, PartialEq)]
pub struct Binding {
    /// The grammar that the constrained part must match.
    pub source: GrammarSource,
    /// The trigger after which the grammar applies; `None` means that the grammar constrains the whole answer. If the
    /// Boolean is true, the grammar applies after each trigger, and all other text is unconstrained. If it is false,
    /// the grammar applies once, and the answer has to end after the constrained part.
    pub after: Option<(Trigger, bool)>,
}

impl Binding {
    /// Creates a binding that constrains the whole answer.
    pub fn whole(source: GrammarSource) -> Self {
        Self { source, after: None }
    }

    /// Serializes the binding as JSON, which [`from_text`](Self::from_text) reads back.
    pub fn to_text(&self) -> String {
        let source = match &self.source {
            GrammarSource::JsonObject => json!(["object", null]),
            GrammarSource::JsonSchema(schema) => json!(["schema", schema]),
            GrammarSource::Regex(text) => json!(["regex", text]),
            GrammarSource::Choice(texts) => json!(["choice", texts]),
            GrammarSource::Lark(text) => json!(["lark", text]),
            GrammarSource::Ebnf(text) => json!(["ebnf", text]),
        };
        let after = self.after.as_ref().map(|(trigger, repeats)| json!([trigger.to_json(), repeats]));
        json!([source, after]).to_string()
    }

    /// Reads the text that [`to_text`](Self::to_text) wrote. Returns `None` for any other text.
    pub fn from_text(text: &str) -> Option<Self> {
        let json = json_value(text).ok()?;
        let what = json.get(0)?.get(1)?;
        let text = || what.as_str().map(str::to_owned);
        let source = match json.get(0)?.get(0)?.as_str()? {
            "object" => GrammarSource::JsonObject,
            "schema" => GrammarSource::JsonSchema(what.clone()),
            "regex" => GrammarSource::Regex(text()?),
            "choice" => {
                let text = |text: &Value| text.as_str().map(str::to_owned);
                GrammarSource::Choice(what.as_array()?.iter().map(text).collect::<Option<_>>()?)
            }
            "lark" => GrammarSource::Lark(text()?),
            "ebnf" => GrammarSource::Ebnf(text()?),
            _ => return None,
        };
        let after = match json.get(1)? {
            Value::Null => None,
            after => Some((Trigger::from_json(after.get(0)?)?, after.get(1)?.as_bool()?)),
        };
        Some(Self { source, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Marker;

    #[test]
    fn a_text_becomes_the_same_again() {
        let marker = Marker { text: "<tool>".into(), at_start: true, included: false };
        let trigger = Trigger::new(vec![marker]).separated_by(";\n");
        for (source, after) in [
            (GrammarSource::JsonObject, None),
            (GrammarSource::JsonSchema(json!({"b": [1.5, "\u{e9}"], "a": null})), Some((trigger, true))),
            (GrammarSource::Regex("a\"b".into()), None),
            (GrammarSource::Choice(vec!["x".into(), "y".into()]), None),
            (GrammarSource::Lark("start: \"a\"".into()), Some((Trigger::new(vec![]), false))),
            (GrammarSource::Ebnf("root ::= \"a\"".into()), None),
        ] {
            let binding = Binding { source, after };
            assert_eq!(Binding::from_text(&binding.to_text()), Some(binding));
        }
        for other in ["", "[]", "[[\"other\", 1], null]", "[[\"regex\", 1], null]", "[[\"regex\", \"a\"], [1]]"] {
            assert_eq!(Binding::from_text(other), None, "{other}");
        }
    }
}
