//! A model in a program of one's own: several prompts are continued at once.
//!
//! ```console
//! $ cargo run --release -p generate -- models/storyteller "Once upon a time" "One sunny morning"
//! ```

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use generate::open;
use interbed_engine::text::{TextOptions, TextStream};
use interbed_engine::{Request, SamplingParams};

/// Longest continuation, in tokens.
const TOKENS: usize = 60;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().context("usage: generate MODEL_DIRECTORY PROMPT...")?;
    let model = open(Path::new(&dir))?;
    let tokenizer = Arc::new(model.tokenizer);

    // All are submitted before any is read, so the engine computes them together.
    let prompts: Vec<String> = args.collect();
    let submit = |prompt: &String| {
        let request = Request {
            prompt: tokenizer.encode(prompt, true)?,
            params: SamplingParams { max_tokens: TOKENS, temperature: 0.0, ..SamplingParams::default() },
            ..Request::default()
        };
        let options = TextOptions { skip_special_tokens: true, ..TextOptions::default() };
        let events = model.engine.handle().submit(request)?;
        anyhow::Ok(TextStream::new(events, tokenizer.clone(), options))
    };
    let streams: Vec<TextStream> = prompts.iter().map(submit).collect::<Result<_>>()?;
    for (prompt, mut stream) in prompts.iter().zip(streams) {
        print!("{prompt}");
        while let Some(delta) = stream.blocking_next() {
            print!("{}", delta.text);
            if let Some(Err(error)) = delta.finished {
                return Err(error.into());
            }
        }
        println!("\n");
    }
    Ok(())
}
