//! Telling routers what the prefix cache holds.

use anyhow::Result;
use strata_kv::CacheWatcher;
use strata_kv_events::{EventPublisher, PublishError, PublisherConfig};

use crate::failure::Advised;
use crate::options::KvEventOptions;
use crate::report::report;

/// What tells of blocks of `block_size` tokens, if it was asked for.
///
/// # Errors
/// An address that cannot be listened on.
pub fn open(options: Option<&KvEventOptions>, block_size: usize) -> Result<Option<Box<dyn CacheWatcher>>> {
    let Some(KvEventOptions { kv_events: Some(events), kv_events_replay, kv_events_topic }) = options else {
        return Ok(None);
    };
    let (events, replay, topic) = (events.clone(), kv_events_replay.clone(), kv_events_topic.clone());
    let publisher = EventPublisher::bind(PublisherConfig { events, replay, topic, block_size }).map_err(refused)?;
    let replay = publisher.replay().map(|address| format!(", missed ones on tcp://{address}")).unwrap_or_default();
    report!("Telling KV events, of blocks of {block_size} tokens, on tcp://{}{replay}", publisher.events());
    Ok(Some(Box::new(publisher)))
}

fn refused(error: PublishError) -> anyhow::Error {
    match error {
        PublishError::Endpoint { endpoint, source } => Advised::system(
            format!("cannot listen on {endpoint} for KV events"),
            "choose another --kv-events or --kv-events-replay, an address of this machine; port 0 takes a free one",
            source,
        ),
        error @ PublishError::Thread(_) => error.into(),
    }
}
