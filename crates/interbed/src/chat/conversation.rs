//! The conversation so far, in the form that chat templates expect.

use serde_json::{Value, json};

/// A message of the user or an answer of the model.
pub struct ChatTurn {
    pub role: &'static str,
    pub content: String,
}

/// The system message, and the messages of the user with the model's answers.
pub struct Conversation {
    pub system: Option<String>,
    pub turns: Vec<ChatTurn>,
}

impl Conversation {
    /// Returns the messages for the chat template.
    pub fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let turns = self.turns.iter().map(|turn| json!({"role": turn.role, "content": turn.content}));
        system.chain(turns).collect()
    }

    /// Drops the oldest message together with its answer. Templates require that the roles alternate and that the user
    /// begins, so the message is not dropped alone. Returns false, and drops nothing, if only the last message is left.
    pub fn drop_oldest(&mut self) -> bool {
        let next_user = self.turns.iter().skip(1).position(|turn| turn.role == "user");
        match next_user {
            Some(index) => {
                self.turns.drain(..=index);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_exchange_is_dropped_and_the_last_message_stays() {
        let turn = |role, content: &str| ChatTurn { role, content: content.into() };
        let mut conversation = Conversation {
            system: Some("be kind".into()),
            turns: vec![turn("user", "one"), turn("assistant", "1"), turn("user", "two")],
        };
        assert!(conversation.drop_oldest());
        let expect = json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": "two"}]);
        assert_eq!(Value::from(conversation.messages()), expect);
        assert!(!conversation.drop_oldest());
    }
}
