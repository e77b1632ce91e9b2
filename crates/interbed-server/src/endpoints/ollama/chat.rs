//! Implements `/api/chat`, which answers conversations.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Prepared, Shape, Task, respond};
use super::conversation::{as_chat, with_types};
use super::settings::Settings;
use super::{OfChat, shared_parts};
use crate::answer::Form;
use crate::app::App;
use crate::body::{Received, receive};
use crate::endpoints::chat::{Prompt, Rendering, begin, turns};
use crate::error::ApiError;
use crate::fields::{Field, read, sent};
use crate::openapi::{Part, part};
use crate::tool_choice::{Choice, ToolChoice};
use crate::tool_list::ToolList;
use crate::tool_use::{AskedTools, bind};
use crate::unsupported::Supported;

/// The fields from which the prompt is made.
#[derive(Deserialize)]
struct Conversation {
    messages: Option<Field<Vec<Value>>>,
    tools: Option<Field<Vec<Value>>>,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let (caller, arrival) = (received.caller.clone(), received.arrival);
    let task = app.blocking(caller.tenant, move |app| prepare(app, received)).await?;
    respond(&app, arrival, caller, Shape::Message, task).await
}

/// Returns the fields that `/api/chat` reads.
pub(crate) fn parts() -> Vec<Part> {
    shared_parts().into_iter().chain([part!(Conversation)]).collect()
}

fn prepare(app: &App, received: Received) -> Result<Task, ApiError> {
    let Received { body, .. } = received;
    let mut preparing = begin(app, &body)?;
    read::<Supported<OfChat>>(body.json())?.tell(&app.notes);
    let mut settings = Settings::read(app, body.json(), &mut preparing.share)?;
    let Conversation { messages, tools } = read(body.json())?;
    drop(body);
    let list = ToolList::of_chat(with_types(sent(tools).unwrap_or_default()), &app.notes)?;
    let messages = sent(messages).unwrap_or_default();
    if messages.is_empty() {
        return Task::load(settings);
    }
    let messages = turns(as_chat(messages)?)?;
    // If the last message is by the assistant and calls no tools, the answer continues it.
    let continued = messages.last().is_some_and(|last| last["role"] == "assistant" && last["tool_calls"].is_null());
    let continued = continued.then_some("messages");
    let rendering = Rendering {
        messages,
        tools: (!list.is_empty()).then(|| list.functions.clone()),
        continued,
        add_generation_prompt: continued.is_none(),
        kwargs: std::mem::take(&mut settings.kwargs),
        ..Rendering::default()
    };
    let Prompt { tokens, begins, continued } = rendering.prompt(app, &mut preparing)?;
    let choice = ToolChoice::from(Some(Choice::Auto)).checked(&list)?;
    let tools = bind(app, AskedTools { list, choice, parallel: true }, &mut settings.common)?;
    let form = Form::new(app, tools, begins, continued, &mut settings.common)?;
    settings.bound(app, tokens.len())?;
    let prepared = Prepared { common: settings.common, prompt: tokens, form: Some(form), share: preparing.share };
    Ok(Task::Answer(Box::new(prepared)))
}
