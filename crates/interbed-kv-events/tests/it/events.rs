//! Tests batches as they arrive, their numbers, batches that were missed, and peers that misbehave.

use std::io::{ErrorKind, Read, Write};

use interbed_kv::{BlockManager, CacheChanges, CacheWatcher, ChainRoot, KvConfig, SequenceId, TokenId};
use interbed_kv_events::{EventPublisher, PublisherConfig, encode};
use rmpv::Value;

use crate::client::{Client, ready};

const BLOCK: usize = 2;

fn publisher(topic: &str) -> EventPublisher {
    let any = || "127.0.0.1:0".parse().unwrap();
    let config = PublisherConfig { events: any(), replay: Some(any()), topic: topic.to_owned() };
    EventPublisher::bind(config).unwrap().of_blocks(BLOCK)
}

/// A small cache whose changes are recorded.
struct Cache {
    manager: BlockManager,
    changes: CacheChanges,
    next: u64,
}

impl Cache {
    fn new(num_blocks: usize) -> Self {
        let config = KvConfig { num_blocks, block_size: BLOCK, watermark: 0.0, ..Default::default() };
        let mut manager = BlockManager::new(config).unwrap();
        manager.record_changes();
        Self { manager, changes: CacheChanges::default(), next: 0 }
    }

    /// Computes `tokens`, leaves their blocks in the cache, and returns what that changed.
    fn compute(&mut self, tokens: &[TokenId]) -> CacheChanges {
        let id = SequenceId(self.next);
        self.next += 1;
        let hashes = self.manager.hash_prefix(&ChainRoot::default(), tokens);
        self.manager.allocate(id, tokens, &hashes).unwrap();
        self.manager.commit(id, tokens.len());
        self.manager.free(id);
        self.manager.take_changes(&mut self.changes);
        self.changes.clone()
    }
}

fn decode(batch: &[u8]) -> Value {
    rmpv::decode::read_value(&mut &batch[..]).unwrap()
}

fn field<'v>(event: &'v Value, name: &str) -> &'v Value {
    let entries = event.as_map().expect("an event is a map");
    &entries.iter().find(|(key, _)| key.as_str() == Some(name)).unwrap_or_else(|| panic!("no {name} in {event}")).1
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn a_batch_is_what_vllms_structs_expect() {
    let mut cache = Cache::new(4);
    let batch = decode(&encode(&cache.compute(&[10, 11, 12, 13, 14]), BLOCK, 12.5));
    let [time, events, rank] = &batch.as_array().unwrap()[..] else { panic!("{batch}") };
    assert_eq!((time.as_f64(), rank.as_u64()), (Some(12.5), Some(0)));
    let [stored] = &events.as_array().unwrap()[..] else { panic!("one chain is one event: {events}") };
    assert_eq!(field(stored, "type").as_str(), Some("BlockStored"));
    assert_eq!(numbers(field(stored, "token_ids")), [10, 11, 12, 13]);
    assert_eq!(field(stored, "block_size").as_u64(), Some(2));
    assert_eq!(field(stored, "medium").as_str(), Some("GPU"));
    for absent in ["parent_block_hash", "lora_id", "lora_name"] {
        assert!(field(stored, absent).is_nil());
    }
    let hashes = numbers(field(stored, "block_hashes"));
    assert_eq!(hashes.len(), 2);

    // The new block continues one that was there, which the batch names as its parent.
    let batch = decode(&encode(&cache.compute(&[10, 11, 12, 13, 1 << 20, 15, 16]), BLOCK, 0.0));
    let stored = &batch[1][0];
    assert_eq!(field(stored, "parent_block_hash").as_u64(), Some(hashes[1]));
    assert_eq!(numbers(field(stored, "token_ids")), [1 << 20, 15]);

    // Blocks that have to go are told before those that take their place, and children before parents.
    let batch = decode(&encode(&cache.compute(&[0, 1, 2, 3, 4, 5, 6, 7]), BLOCK, 0.0));
    let [removed, stored] = &batch[1].as_array().unwrap()[..] else { panic!("{batch}") };
    assert_eq!(field(removed, "type").as_str(), Some("BlockRemoved"));
    assert_eq!(field(removed, "medium").as_str(), Some("GPU"));
    assert_eq!(numbers(field(removed, "block_hashes"))[1..], [hashes[1], hashes[0]]);
    assert_eq!(numbers(field(stored, "block_hashes")).len(), 4);
    assert!(field(stored, "parent_block_hash").is_nil());

    cache.manager.reset_cache();
    cache.manager.take_changes(&mut cache.changes);
    let batch = decode(&encode(&cache.changes, BLOCK, 0.0));
    assert_eq!(batch[1], Value::Array(vec![Value::Map(vec![("type".into(), "AllBlocksCleared".into())])]));
}

#[test]
fn subscribers_are_told_and_what_they_missed_is_repeated() {
    let mut publisher = publisher("kv@interbed");
    let mut cache = Cache::new(100);
    let mut tell = |tokens: &[TokenId]| {
        let changes = cache.compute(tokens);
        publisher.changed(&changes);
        changes
    };
    // Nobody listens yet.
    tell(&[1, 2, 3]);
    let (events, replay) = (publisher.events(), publisher.replay().unwrap());
    let mut all = Client::connect(events, "SUB");
    all.subscribe(b"");
    let mut some = Client::connect(events, "XSUB");
    some.subscribe(b"kv@");
    let mut other = Client::connect(events, "SUB");
    other.subscribe(b"kv@vllm");
    let mut tell = |tokens: &[TokenId]| {
        let changes = cache.compute(tokens);
        publisher.changed(&changes);
        changes
    };
    let told = [tell(&[4, 5, 6]), tell(&[4, 5, 6, 7, 8])];
    for subscriber in [&mut all, &mut some] {
        for (number, changes) in (1u64..).zip(&told) {
            let frames = subscriber.message().unwrap();
            let [topic, counted, batch] = &frames[..] else { panic!("{frames:?}") };
            assert_eq!((&topic[..], &counted[..]), (&b"kv@interbed"[..], &number.to_be_bytes()[..]));
            assert_eq!(decode(batch)[1], decode(&encode(changes, BLOCK, 0.0))[1]);
        }
    }
    // A peer that was told of nothing still answers.
    other.ping();
    // A cancelled subscription is over.
    some.send(&[b"\0kv@"]);
    some.ping();
    tell(&[9, 9, 9]);
    some.ping();
    assert_eq!(all.message().unwrap()[1], 3u64.to_be_bytes());

    // The request comes as a REQ socket sends it, and as a DEALER does, with and without an empty frame.
    for (kind, envelope) in [("REQ", vec![&b""[..]]), ("DEALER", vec![]), ("DEALER", vec![&b"way"[..], &b""[..]])] {
        let mut asker = Client::connect(replay, kind);
        for first in [0, 2, 4, u64::MAX] {
            asker.send(&[&envelope[..], &[&first.to_be_bytes()[..]]].concat());
            for number in first..4 {
                let frames = asker.message().unwrap();
                assert_eq!(frames[..envelope.len()], envelope[..]);
                assert_eq!(frames[envelope.len()], number.to_be_bytes());
                assert!(decode(&frames[envelope.len() + 1])[1].is_array());
            }
            let end = asker.message().unwrap();
            assert_eq!(end[envelope.len()..], [(-1i64).to_be_bytes().to_vec(), vec![]]);
        }
        // A request that is not a number is not answered, and does no harm.
        asker.send(&[b"", b"seven"]);
        asker.ping();
    }
}

/// Checks that the other side closes the connection, whatever it has sent until then.
fn assert_closed(mut client: Client) {
    let mut rest = Vec::new();
    match client.0.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn peers_that_misbehave_are_cut_and_harm_nobody() {
    let mut publisher = publisher("");
    let events = publisher.events();
    let mut good = Client::connect(events, "SUB");
    good.subscribe(b"");

    let mut stranger = Client::open(events);
    stranger.0.write_all(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(64)).as_bytes()).unwrap();
    assert_closed(stranger);

    let mut secret = Client::open(events);
    secret.greet(b"PLAIN");
    assert_closed(secret);

    let mut wrong = Client::open(events);
    wrong.greet(b"NULL");
    wrong.command(&ready("PULL"));
    assert_closed(wrong);

    // The frame has a length that no memory holds.
    let mut huge = Client::connect(events, "SUB");
    huge.0.write_all(&[2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).unwrap();
    assert_closed(huge);

    let mut greedy = Client::connect(events, "SUB");
    (0..65u8).for_each(|topic| greedy.send(&[&[1, topic]]));
    assert_closed(greedy);

    let mut endless = Client::connect(events, "SUB");
    (0..8).for_each(|_| endless.0.write_all(&[1, 1, b'x']).unwrap());
    assert_closed(endless);

    // The peer vanishes in the middle of a frame.
    let mut gone = Client::connect(events, "SUB");
    gone.0.write_all(&[0, 200, 1]).unwrap();
    drop(gone);

    publisher.changed(&Cache::new(4).compute(&[1, 2, 3]));
    assert_eq!(good.message().unwrap()[1], 0u64.to_be_bytes());
}

/// A subscriber that does not read misses batches, sees that by the batches' numbers, and gets them from the other
/// socket.
#[test]
fn a_slow_subscriber_catches_up() {
    const BATCHES: u64 = 9_000;
    let mut publisher = publisher("");
    let mut slow = Client::connect(publisher.events(), "SUB");
    slow.subscribe(b"");
    let mut cache = Cache::new(4096);
    let long: Vec<TokenId> = (0..4001).collect();
    let changes = cache.compute(&long);
    for _ in 0..BATCHES {
        publisher.changed(&changes);
    }
    let mut received = Vec::new();
    // The last batch is told, whatever was missed before.
    while received.last() != Some(&(BATCHES - 1)) {
        received.push(u64::from_be_bytes(slow.message().unwrap()[1][..].try_into().unwrap()));
    }
    assert!(received.is_sorted() && received.len() < BATCHES as usize, "{} were received", received.len());
    let gap = (0..BATCHES).find(|number| !received.contains(number)).unwrap();
    let mut asker = Client::connect(publisher.replay().unwrap(), "DEALER");
    asker.send(&[b"", &gap.to_be_bytes()]);
    // The answer has as many batches as the limit of bytes keeps, up to the last.
    let mut repeated = Vec::new();
    loop {
        let frames = asker.message().unwrap();
        let number = i64::from_be_bytes(frames[1][..].try_into().unwrap());
        if number < 0 {
            break;
        }
        repeated.push(number as u64);
    }
    assert!(repeated.is_sorted() && repeated.last() == Some(&(BATCHES - 1)));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let publisher = publisher("");
    let taken = publisher.events().to_string().parse().unwrap();
    let config = PublisherConfig { events: taken, replay: None, topic: String::new() };
    let error = EventPublisher::bind(config).err().expect("it is taken").to_string();
    assert!(error.contains(&publisher.events().to_string()), "{error}");
}
