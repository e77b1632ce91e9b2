//! Implements `/api/generate`, which continues a prompt.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use interbed_engine::TokenId;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer::{Prepared, Shape, Task, respond};
use super::settings::Settings;
use super::{OfGenerate, shared_parts};
use crate::answer::Form;
use crate::app::App;
use crate::blocks::refuse;
use crate::body::{Preparing, Received, receive};
use crate::endpoints::chat::{Prompt, Rendering};
use crate::error::ApiError;
use crate::fields::{Field, read, sent, shown};
use crate::json_text::object;
use crate::openapi::{Part, part};
use crate::unsupported::Supported;

/// The fields from which the prompt is made, and fields that are refused because the server cannot follow them.
#[derive(Deserialize)]
struct Fields<'b> {
    prompt: Option<Field<String>>,
    system: Option<Field<String>>,
    raw: Option<Field<bool>>,
    #[serde(borrow)]
    template: Option<&'b RawValue>,
    #[serde(borrow)]
    context: Option<&'b RawValue>,
    #[serde(borrow)]
    images: Option<&'b RawValue>,
    #[serde(borrow)]
    suffix: Option<&'b RawValue>,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let (caller, arrival) = (received.caller.clone(), received.arrival);
    let task = app.blocking(caller.tenant, move |app| prepare(app, received)).await?;
    respond(&app, arrival, caller, Shape::Response, task).await
}

/// Returns the fields that `/api/generate` reads.
pub(crate) fn parts() -> Vec<Part> {
    shared_parts().into_iter().chain([part!(Fields<'_>)]).collect()
}

/// The messages of a prompt and a system prompt without their texts, for counting their memory.
const MESSAGE: &str = r#"[{"role":"system","content":""},{"role":"user","content":""}]"#;

fn prepare(app: &App, received: Received) -> Result<Task, ApiError> {
    let Received { body, .. } = received;
    let messages = serde_json::from_str(MESSAGE).unwrap_or_default();
    let mut preparing = Preparing::conversation(app, &body, [Some(Field(messages))])?;
    read::<Supported<OfGenerate>>(body.json())?.tell(&app.notes);
    let mut settings = Settings::read(app, body.json(), &mut preparing.share)?;
    let fields: Fields<'_> = read(body.json())?;
    for (name, value, next) in [
        ("template", fields.template, "the model has its own; send raw with all of the prompt instead"),
        ("context", fields.context, "this server keeps no contexts; send the conversation to /api/chat instead"),
        ("images", fields.images, "this model reads text alone; leave it out"),
        ("suffix", fields.suffix, "this server does not fill in between texts; leave it out"),
    ] {
        if let Some(value) = value.filter(|value| !matches!(value.get(), r#""""# | "[]" | "null" | "false")) {
            return refuse(name, format!("is {}, but {next}", shown(value.get())));
        }
    }
    let (prompt, system) = (sent(fields.prompt).unwrap_or_default(), sent(fields.system).unwrap_or_default());
    let is_raw = sent(fields.raw).unwrap_or(false);
    drop(body);
    if prompt.is_empty() {
        return Task::load(settings);
    }
    let is_plain = is_raw || app.template.is_none();
    if is_plain && !system.is_empty() {
        let why = if is_raw { "raw says that the prompt is all there is" } else { "this model has no chat template" };
        return refuse("system", format!("is {}, but {why}; leave it out", shown(&system)));
    }
    let (tokens, form) = match is_plain {
        true => (app.encode(preparing.share.tenant(), "prompt", &prompt, true)?, None),
        false => {
            let (tokens, form) = conversed(app, prompt, system, &mut settings, &mut preparing)?;
            (tokens, Some(form))
        }
    };
    settings.bound(app, tokens.len())?;
    let prepared = Prepared { common: settings.common, prompt: tokens, form, share: preparing.share };
    Ok(Task::Answer(Box::new(prepared)))
}

/// Renders the prompt as a conversation: the system prompt, if there is one, and one message by the user.
fn conversed(
    app: &App,
    prompt: String,
    system: String,
    settings: &mut Settings,
    preparing: &mut Preparing,
) -> Result<(Vec<TokenId>, Form), ApiError> {
    let message = |role: &str, text: String| object([("role", role.into()), ("content", text.into())]);
    let system = Some(system).filter(|system| !system.is_empty()).map(|system| message("system", system));
    let rendering = Rendering {
        messages: system.into_iter().chain([message("user", prompt)]).collect(),
        add_generation_prompt: true,
        kwargs: std::mem::take(&mut settings.kwargs),
        ..Rendering::default()
    };
    let Prompt { tokens, begins, continued } = rendering.prompt(app, preparing)?;
    let form = Form::new(app, None, begins, continued, &mut settings.common)?;
    Ok((tokens, form))
}
