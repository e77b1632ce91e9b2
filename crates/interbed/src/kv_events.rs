//! Publishes events about what the prefix cache holds, for routers.

use anyhow::Result;
use interbed_device::Bytes;
use interbed_kv::CacheWatcher;
use interbed_kv_events::{EventPublisher, PublishError, PublisherConfig};

use crate::failure::Advised;
use crate::options::KvEventOptions;
use crate::report::report;

/// Returns the maximum memory for publishing KV events.
pub fn memory(options: Option<&KvEventOptions>) -> Bytes {
    let is_wanted = options.is_some_and(|options| options.kv_events.is_some());
    Bytes(if is_wanted { EventPublisher::BYTES_MAX as u64 } else { 0 })
}

/// Binds the publisher's addresses, if the options ask for events.
///
/// # Errors
/// Fails if the publisher cannot listen on an address.
pub fn bind(options: Option<&KvEventOptions>) -> Result<Option<EventPublisher>> {
    let Some(KvEventOptions { kv_events: Some(events), kv_events_replay, kv_events_topic }) = options else {
        return Ok(None);
    };
    let (events, replay, topic) = (events.clone(), kv_events_replay.clone(), kv_events_topic.clone());
    Ok(Some(EventPublisher::bind(PublisherConfig { events, replay, topic }).map_err(refused)?))
}

/// Turns the publisher into a watcher of a cache with blocks of `block_size` tokens, and reports its addresses to the
/// user.
pub fn tell(publisher: EventPublisher, block_size: usize) -> Box<dyn CacheWatcher> {
    let replay = publisher.replay().map(|address| format!(", missed ones on tcp://{address}")).unwrap_or_default();
    report!("Telling KV events, of blocks of {block_size} tokens, on tcp://{}{replay}", publisher.events());
    Box::new(publisher.of_blocks(block_size))
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
