//! The turns of a conversation in the format of chats: messages with a role, text, thinking and calls.
//!
//! Clients send the parts of one turn in several messages or items, and put others between a call and its result. Chat
//! templates expect one message for a turn of the assistant, followed by the results of its calls in the order of the
//! calls.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use serde_json::{Map, Value, json};

use crate::json_text::object;

type Message = Map<String, Value>;

/// The newest message with a call of some id.
#[derive(Default)]
struct Caller {
    index: usize,
    /// The indices of the message's calls with the id that have no result yet.
    places: VecDeque<usize>,
}

const ASSISTANT: &str = "assistant";
/// The fields that may contain thinking. Chat templates read the first one.
const THOUGHTS: [&str; 2] = ["reasoning_content", "reasoning"];

/// Returns the messages of the user's newest turn: the last run of messages for which `is_by_user` is true.
pub(crate) fn newest_turn(is_by_user: impl DoubleEndedIterator<Item = bool> + ExactSizeIterator) -> Range<usize> {
    let mut turn = 0..0;
    for (index, is_by_user) in is_by_user.enumerate().rev() {
        match (is_by_user, turn.is_empty()) {
            (true, true) => turn = index..index + 1,
            (true, false) => turn.start = index,
            (false, true) => {}
            (false, false) => break,
        }
    }
    turn
}

/// The fields of blocks and items that mean nothing to a model.
const NOT_TOLD: [&str; 8] =
    ["cache_control", "encrypted_content", "encrypted_index", "file_id", "id", "result", "signature", "status"];
/// The longest word, in bytes, of a text that is shown. Longer words without white space are encoded files and images.
const WORD_BYTES_MAX: usize = 1024;
/// The deepest nesting within a block or item that is shown.
const TOLD_DEPTH_MAX: usize = 16;

/// Describes a block or item of the history as text. Files and images in it are left out.
pub(crate) fn told_as_text(item: Value) -> String {
    let kind = item["type"].as_str().unwrap_or_default().to_owned();
    let mut told = told(item, TOLD_DEPTH_MAX);
    told.as_object_mut().map(|fields| fields.shift_remove("type"));
    format!("[{kind}: {told}]")
}

/// Removes encoded files, deep values and meaningless fields from a value.
fn told(value: Value, depth: usize) -> Value {
    match value {
        Value::String(text) if is_encoded(&text) => "(left out)".into(),
        Value::Array(_) | Value::Object(_) if depth == 0 => "(left out)".into(),
        Value::Array(list) => list.into_iter().map(|value| told(value, depth - 1)).collect(),
        Value::Object(fields) => {
            let fields =
                fields.into_iter().filter(|(name, value)| !NOT_TOLD.contains(&name.as_str()) && !value.is_null());
            fields.map(|(name, value)| (name, told(value, depth - 1))).collect::<Message>().into()
        }
        other => other,
    }
}

/// Returns whether a text is an encoded file or image.
fn is_encoded(text: &str) -> bool {
    let has_long_word = || text.split_ascii_whitespace().any(|word| word.len() > WORD_BYTES_MAX);
    text.starts_with("data:") || (text.len() > WORD_BYTES_MAX && has_long_word())
}

/// A conversation under construction, message by message.
#[derive(Default)]
pub(crate) struct History {
    messages: Vec<Message>,
    /// The function of each call, by the call's id.
    called: HashMap<String, String>,
}

impl History {
    /// Returns the turns of a chat's messages, which are objects with roles.
    pub(crate) fn of_chat(messages: Vec<Value>) -> Self {
        let mut turns = Self::default();
        for message in messages {
            if let Value::Object(message) = message {
                add(&mut turns.messages, message, false);
            }
        }
        turns
    }

    /// Adds text of `role`. Continues the last message if it has the same role, as many templates require alternating
    /// roles.
    pub(crate) fn push(&mut self, role: &str, text: String) {
        self.add(json!({"role": role, "content": text}));
    }

    /// Adds thinking of the assistant.
    pub(crate) fn think(&mut self, text: String) {
        self.add(json!({"role": ASSISTANT, "content": null, THOUGHTS[0]: text}));
    }

    /// Adds a call by the assistant. The `arguments` are an object, or the text of an object.
    pub(crate) fn call(&mut self, id: String, name: String, arguments: Value) {
        let function = object([("name", name.as_str().into()), ("arguments", arguments)]);
        let call = object([("id", id.as_str().into()), ("type", "function".into()), ("function", function)]);
        let calls = Value::Array(vec![call]);
        self.add(object([("role", ASSISTANT.into()), ("content", Value::Null), ("tool_calls", calls)]));
        self.called.insert(id, name);
    }

    /// Adds the result of a call. If the call is no longer part of the history, as after a client has shortened it, the
    /// result becomes text of the user.
    pub(crate) fn result(&mut self, id: String, text: String) {
        match self.called.get(&id) {
            Some(name) => self.add(json!({"role": "tool", "tool_call_id": id, "name": name, "content": text})),
            None => self.push("user", format!("[An earlier call brought: {text}]")),
        }
    }

    /// Returns whether the last message is by the assistant, and has no calls.
    pub(crate) fn is_to_be_continued(&self) -> bool {
        self.messages.last().is_some_and(|last| is_by(last, ASSISTANT) && calls_of(last).is_empty())
    }

    /// Returns the messages, with each result moved after the message with its call. Results without a call stay where
    /// they are.
    pub(crate) fn into_messages(self) -> Vec<Value> {
        let mut results: Vec<Vec<(usize, Message)>> = Vec::new();
        results.resize_with(self.messages.len(), Vec::new);
        let mut callers: HashMap<String, Caller> = HashMap::new();
        let mut others: Vec<Option<Message>> = Vec::with_capacity(self.messages.len());
        for (index, message) in self.messages.into_iter().enumerate() {
            for (place, call) in calls_of(&message).iter().enumerate() {
                let Some(id) = call["id"].as_str() else { continue };
                let caller = callers.entry(id.to_owned()).or_default();
                if caller.index != index {
                    *caller = Caller { index, places: VecDeque::new() };
                }
                caller.places.push_back(place);
            }
            let id = message.get("tool_call_id").and_then(Value::as_str).filter(|_| is_by(&message, "tool"));
            match id.and_then(|id| callers.get_mut(id)) {
                Some(caller) => {
                    // Results beyond the number of calls come last.
                    let place = caller.places.pop_front().unwrap_or(usize::MAX);
                    results[caller.index].push((place, message));
                    others.push(None);
                }
                None => others.push(Some(message)),
            }
        }
        let mut arranged: Vec<Message> = Vec::with_capacity(others.len());
        let mut lifted = false;
        for (other, mut results) in others.into_iter().zip(results) {
            let Some(message) = other else {
                lifted = true;
                continue;
            };
            add(&mut arranged, message, lifted);
            lifted = false;
            results.sort_by_key(|(place, _)| *place);
            arranged.extend(results.into_iter().map(|(_, result)| result));
        }
        arranged.into_iter().map(Value::Object).collect()
    }

    fn add(&mut self, message: Value) {
        if let Value::Object(message) = message {
            add(&mut self.messages, message, true);
        }
    }
}

/// Adds a message, or merges it into the last one if both belong to one turn. Consecutive messages of the assistant
/// belong to one turn, those of other roles only if they are `joined`, and results never.
fn add(messages: &mut Vec<Message>, message: Message, joined: bool) {
    match messages.last_mut() {
        Some(last)
            if last.get("role") == message.get("role")
                && (is_by(last, ASSISTANT) || (joined && !is_by(last, "tool"))) =>
        {
            join(last, message);
        }
        _ => messages.push(message),
    }
}

/// Merges the fields of `next` into `message`.
fn join(message: &mut Message, mut next: Message) {
    let thoughts = [&mut *message, &mut next].map(|message| {
        let [one, other] = THOUGHTS.map(|name| message.shift_remove(name).filter(Value::is_string));
        one.or(other)
    });
    if let Some(thought) = joined(thoughts) {
        message.insert(THOUGHTS[0].into(), thought);
    }
    for (name, value) in next {
        match (name.as_str(), message.get_mut(&name)) {
            ("tool_calls", Some(Value::Array(calls))) => {
                calls.extend(if let Value::Array(more) = value { more } else { Vec::new() });
            }
            ("content" | "thinking", Some(before)) => {
                let both = [Some(before.take()), Some(value)].map(|text| text.filter(Value::is_string));
                *before = joined(both).unwrap_or(Value::Null);
            }
            (_, Some(_)) => {}
            (_, None) => drop(message.insert(name, value)),
        }
    }
}

/// Joins both texts with a line end. If there is only one text, returns this text.
fn joined(texts: [Option<Value>; 2]) -> Option<Value> {
    match texts {
        [Some(Value::String(mut one)), Some(Value::String(other))] => {
            if !one.is_empty() && !other.is_empty() {
                one.push('\n');
            }
            // Appends in place, so that a long row of messages is not copied for each of them.
            one.push_str(&other);
            Some(one.into())
        }
        [one, other] => one.or(other),
    }
}

fn is_by(message: &Message, role: &str) -> bool {
    message.get("role").is_some_and(|known| known == role)
}

fn calls_of(message: &Message) -> &[Value] {
    message.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abbreviates messages: role, text, thinking, and ids of calls or of the result.
    fn short(messages: &[Value]) -> Vec<String> {
        let one = |message: &Value| {
            let text = |field: &str| message[field].as_str().unwrap_or_default();
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let calls: Vec<&str> = calls.filter_map(|call| call["id"].as_str()).collect();
            let thought = match text("reasoning_content") {
                "" => String::new(),
                thought => format!("({thought})"),
            };
            let (said, calls) = (text("content"), calls.join("+"));
            format!("{}:{thought}{said}[{calls}{}]", &text("role")[..1], text("tool_call_id")).replace("[]", "")
        };
        messages.iter().map(one).collect()
    }

    /// Builds turns from abbreviations: `u`, `s` and `a` are text of the user, system and assistant, `t` is thinking,
    /// `c` a call, `r` a result.
    fn turns(parts: &str) -> Vec<String> {
        let mut turns = History::default();
        for part in parts.split(' ') {
            let (kind, rest) = part.split_at(1);
            let rest = rest.to_owned();
            match kind {
                "u" => turns.push("user", rest),
                "s" => turns.push("system", rest),
                "a" => turns.push(ASSISTANT, rest),
                "t" => turns.think(rest),
                "c" => turns.call(rest, "f".into(), json!({})),
                _ => turns.result(rest.clone(), rest),
            }
        }
        short(&turns.into_messages())
    }

    #[test]
    fn what_belongs_to_one_turn_is_one_message() {
        for (parts, expected) in [
            ("s1 ua ub ac", vec!["s:1", "u:a\nb", "a:c"]),
            ("ua c1 ab r1", vec!["u:a", "a:b[1]", "t:1[1]"]),
            ("ua tx c1 ty c2 r1 r2", vec!["u:a", "a:(x\ny)[1+2]", "t:1[1]", "t:2[2]"]),
            ("ua tx ab ty ac c1 r1 tz ad", vec!["u:a", "a:(x\ny)b\nc[1]", "t:1[1]", "a:(z)d"]),
            ("ua c1 ub r1 uc", vec!["u:a", "a:[1]", "t:1[1]", "u:b\nc"]),
            ("ua c1 s2 r1 ub", vec!["u:a", "a:[1]", "t:1[1]", "s:2", "u:b"]),
            ("ua c1 s2 c2 r2 ab r1", vec!["u:a", "a:[1]", "t:1[1]", "s:2", "a:[2]", "t:2[2]", "a:b"]),
            // Results are in the order of their calls, whatever order they arrived in.
            ("ua c1 c2 c3 r3 r1 r2", vec!["u:a", "a:[1+2+3]", "t:1[1]", "t:2[2]", "t:3[3]"]),
            // A reused id refers to the newest call with it.
            ("ua c1 r1 ub c1 r1", vec!["u:a", "a:[1]", "t:1[1]", "u:b", "a:[1]", "t:1[1]"]),
            ("ua c1 r1 c2 r2 ab", vec!["u:a", "a:[1]", "t:1[1]", "a:[2]", "t:2[2]", "a:b"]),
            ("ua c1 ub", vec!["u:a", "a:[1]", "u:b"]),
        ] {
            assert_eq!(turns(parts), expected, "{parts}");
        }
    }

    #[test]
    fn what_is_told_of_the_past_has_no_files_in_it() {
        let picture = "A".repeat(3000);
        let item = json!({"type": "computer_call_output", "id": "x", "output": {"type": "shot", "image_url":
            format!("data:image/png;base64,{picture}")}, "content": [{"encrypted_content": picture, "title": "T",
            "data": picture, "text": "a b ".repeat(500)}], "none": null});
        let text = told_as_text(item);
        assert!(
            text.starts_with("[computer_call_output: {\"output\":{\"type\":\"shot\",\"image_url\":\"(left out)\"}")
        );
        assert!(text.len() < 2300 && text.contains("\"title\":\"T\",\"data\":\"(left out)\",\"text\":\"a b"), "{text}");
        let mut deep = json!(1);
        (0..100).for_each(|_| deep = json!([deep]));
        assert!(told_as_text(json!({"type": "x", "deep": deep})).contains("(left out)"));
    }

    #[test]
    fn the_newest_turn_is_the_last_row_of_a_users_messages() {
        for (users, turn) in [("", 0..0), ("aa", 0..0), ("u", 0..1), ("uu", 0..2), ("uauua", 2..4), ("ua", 0..1)] {
            assert_eq!(newest_turn(users.bytes().map(|one| one == b'u')), turn, "{users}");
        }
    }

    #[test]
    fn messages_of_chats_stay_apart_but_for_the_assistants() {
        let call = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": "{}"}});
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
        let chat = vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "user", "content": "b"}),
            json!({"role": "assistant", "content": null, "reasoning": "x", "tool_calls": [call("1")], "name": "me"}),
            json!({"role": "assistant", "content": "", "reasoning_content": "y", "tool_calls": [call("2")]}),
            json!({"role": "assistant", "content": "c"}),
            json!({"role": "developer", "content": "d"}),
            result("2"),
            json!({"role": "developer", "content": "e"}),
            result("1"),
            result("other"),
            json!({"role": "tool", "content": "none"}),
            json!({"role": "assistant", "content": "f"}),
        ];
        let turns = History::of_chat(chat).into_messages();
        let expected =
            ["u:a", "u:b", "a:(x\ny)c[1+2]", "t:1[1]", "t:2[2]", "d:d\ne", "t:other[other]", "t:none", "a:f"];
        assert_eq!(short(&turns), expected);
        assert_eq!((&turns[2]["name"], &turns[2]["reasoning"]), (&json!("me"), &Value::Null));
        // Results for calls with the same id stay in the order of arrival.
        let same = json!({"role": "assistant", "tool_calls": [call("1"), call("2"), call("1")]});
        let brought = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let chat = vec![same, brought("1", "x"), brought("1", "y"), brought("2", "z"), brought("2", "w")];
        let texts = short(&History::of_chat(chat).into_messages());
        assert_eq!(texts, ["a:[1+2+1]", "t:x[1]", "t:z[2]", "t:y[1]", "t:w[2]"]);
    }

    #[test]
    fn results_follow_their_call_and_calls_are_not_continued() {
        let mut turns = History::default();
        turns.push(ASSISTANT, "I look.".into());
        assert!(turns.is_to_be_continued());
        turns.call("1".into(), "f".into(), json!({"x": 1}));
        assert!(!turns.is_to_be_continued());
        turns.result("1".into(), "ok".into());
        turns.result("3".into(), "late".into());
        let function = json!({"name": "f", "arguments": {"x": 1}});
        let expected = json!([
            {"role": "assistant", "content": "I look.",
                "tool_calls": [{"id": "1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "1", "name": "f", "content": "ok"},
            {"role": "user", "content": "[An earlier call brought: late]"},
        ]);
        assert_eq!(Value::from(turns.into_messages()), expected);
    }
}
