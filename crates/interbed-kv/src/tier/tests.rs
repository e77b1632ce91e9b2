use std::collections::{BTreeMap, HashMap};

use super::*;

fn key(number: u32) -> BlockKey {
    let mut bytes = [0; crate::key::KEY_BYTES];
    // The first byte decides what is sampled.
    bytes[..4].copy_from_slice(&number.wrapping_mul(0x9E37_79B9).to_be_bytes());
    bytes[4..8].copy_from_slice(&number.to_be_bytes());
    // No key is that of nameless contents.
    bytes[8] = 1;
    BlockKey(bytes)
}

fn config(num_segments: u32, gate: f32) -> KvTierConfig {
    // A header of one, and one for each block.
    let record_bytes = vec![0, 2, 3, 4, 5];
    let gate = Gate::new(gate);
    KvTierConfig { num_segments, segment_bytes: 26, segment_header: 1, record_bytes, spare_segments: 1, gate }
}

/// Content of a disk: the keys of each record, by segment and offset.
#[derive(Default)]
struct Disk(HashMap<u32, (u64, BTreeMap<u64, Vec<BlockKey>>)>);

impl Disk {
    fn write(&mut self, record: RecordPlace, keys: &[BlockKey]) {
        let segment = self.0.entry(record.segment).or_default();
        if segment.0 != record.generation {
            *segment = (record.generation, BTreeMap::new());
        }
        assert!(segment.1.insert(record.offset, keys.to_vec()).is_none(), "{record:?} is written twice");
    }

    fn read(&self, place: TierPlace) -> Option<BlockKey> {
        let TierPlace { record, index } = place;
        let (generation, records) = self.0.get(&record.segment)?;
        let keys = records.get(&record.offset).filter(|_| *generation == record.generation)?;
        keys.get(usize::from(index)).copied()
    }
}

#[test]
fn what_is_found_is_there_whatever_happens() {
    for seed in 0..40 {
        let mut random = crate::testing::Rng(seed);
        let mut tier = Tier::new(config(3 + seed as u32 % 4, 0.0));
        let mut disk = Disk::default();
        let mut writing: Vec<(RecordPlace, Vec<BlockKey>)> = Vec::new();
        let mut reading: Vec<(BlockKey, TierPlace)> = Vec::new();
        let mut leaving: Option<(u32, Vec<(BlockKey, TierPlace)>)> = None;
        for _ in 0..3000 {
            match random.below(8) {
                0 | 1 => {
                    let mut keys: Vec<_> = (0..=random.below(4)).map(|_| key(random.below(200) as u32)).collect();
                    keys.sort_unstable();
                    keys.dedup();
                    keys.retain(|&key| tier.wants(key, 0));
                    let contents: Vec<_> = keys.iter().map(|&key| (key, 0)).collect();
                    if !keys.is_empty()
                        && let Some(record) = tier.reserve(&contents)
                    {
                        writing.push((record, keys));
                    }
                }
                2 | 3 if !writing.is_empty() => {
                    let (record, keys) = writing.swap_remove(random.below(writing.len()));
                    let well = random.below(8) > 0;
                    if well {
                        disk.write(record, &keys);
                    }
                    tier.written(record, &keys, well);
                }
                4 => {
                    let key = key(random.below(200) as u32);
                    if let Some(place) = tier.find(key) {
                        tier.looked_up(key);
                        tier.hold(place.record.segment);
                        reading.push((key, place));
                    }
                }
                5 if !reading.is_empty() => {
                    let (key, place) = reading.swap_remove(random.below(reading.len()));
                    assert_eq!(disk.read(place), Some(key), "what is read was overwritten");
                    tier.release(place.record.segment);
                    if random.below(10) == 0 {
                        tier.lose(key, place);
                    }
                }
                6 if leaving.is_none() => {
                    if let Some(Reclaim { segment, carried, .. }) = tier.reclaim() {
                        assert!(reading.iter().all(|(_, place)| place.record.segment != segment));
                        leaving = (!carried.is_empty()).then_some((segment, carried));
                    }
                }
                7 => {
                    let Some((segment, carried)) = &mut leaving else { continue };
                    // A few at a time; some cannot be read, or find no room.
                    let some: Vec<_> = carried.drain(..carried.len().min(3)).collect();
                    for (key, place) in &some {
                        assert!(tier.find(*key) != Some(*place) || disk.read(*place) == Some(*key));
                    }
                    let contents: Vec<_> = some.iter().map(|&(key, _)| (key, 0)).collect();
                    if random.below(6) > 0
                        && !contents.is_empty()
                        && let Some(record) = tier.reserve(&contents)
                    {
                        let keys: Vec<_> = contents.iter().map(|&(key, _)| key).collect();
                        disk.write(record, &keys);
                        tier.written(record, &keys, true);
                    }
                    if carried.is_empty() {
                        tier.reclaimed(*segment);
                        leaving = None;
                    }
                }
                _ => {}
            }
            tier.assert_sound();
            for (key, place) in tier.contents() {
                assert_eq!(disk.read(place), Some(key));
            }
        }
        let TierCounts { hits, stored, evicted, .. } = tier.counts();
        assert!(hits > 5 && stored > 100 && evicted > 50, "{:?}", tier.counts());
    }
}

#[test]
fn what_is_found_again_outlives_its_segment() {
    let mut tier = Tier::new(config(4, 0.0));
    let mut number = 0;
    let mut add = |tier: &mut Tier| {
        let contents: Vec<_> = (0..4).map(|index| (key(number + index), 0)).collect();
        number += 4;
        let keys: Vec<_> = contents.iter().map(|&(key, _)| key).collect();
        let record = tier.reserve(&contents).expect("there is room");
        tier.written(record, &keys, true);
        tier.looked_up(key(1));
        if let Some(Reclaim { segment, carried, .. }) = tier.reclaim()
            && !carried.is_empty()
        {
            assert_eq!(carried.iter().map(|&(key, _)| key).collect::<Vec<_>>(), [key(1)]);
            let record = tier.reserve(&[(key(1), 0)]).expect("room is kept for it");
            tier.written(record, &[key(1)], true);
            tier.reclaimed(segment);
        }
        tier.assert_sound();
    };
    (0..100).for_each(|_| add(&mut tier));
    assert!(tier.find(key(1)).is_some() && tier.find(key(0)).is_none() && tier.find(key(2)).is_none());
    assert!(tier.counts().carried > 4, "{:?}", tier.counts());
}

#[test]
fn single_blocks_are_replaced_without_being_written_again() {
    let mut tier = Tier::new(KvTierConfig::of_blocks(4, Gate::new(0.0)));
    for number in 0..50 {
        tier.reclaim();
        let record = tier.reserve(&[(key(number), 0)]).expect("one was replaced");
        tier.written(record, &[key(number)], true);
        tier.looked_up(key(0));
        tier.assert_sound();
    }
    assert!(tier.find(key(0)).is_some() && tier.find(key(49)).is_some() && tier.find(key(30)).is_none());
    assert_eq!((tier.len(), tier.counts().carried), (4, 0));
}

#[test]
fn classes_that_do_not_return_are_skipped_until_they_do() {
    let mut tier = Tier::new(KvTierConfig::of_blocks(1000, Gate::new(0.2)));
    let offer = |tier: &mut Tier, number: u32, class: u8| {
        tier.reclaim();
        let wanted = tier.wants(key(number), class);
        if wanted && let Some(record) = tier.reserve(&[(key(number), class)]) {
            tier.written(record, &[key(number)], true);
        }
        wanted
    };
    // Contents of class 1 return, those of class 2 do not.
    for number in 0..2000 {
        offer(&mut tier, 2 * number, 1);
        tier.looked_up(key(2 * number));
        offer(&mut tier, 2 * number + 1, 2);
    }
    assert!(offer(&mut tier, 10_000, 1) && !offer(&mut tier, 10_001, 2));
    // Then they do as well: the sample of what was skipped shows it.
    for number in 10_002..14_000 {
        offer(&mut tier, number, 2);
        tier.looked_up(key(number));
    }
    assert!(offer(&mut tier, 20_000, 2));
}

#[test]
fn what_was_left_is_taken_in_and_what_is_of_no_use_goes_first() {
    let mut tier = Tier::new(config(4, 0.0));
    let place = |segment, generation, offset| RecordPlace { segment, generation, offset, count: 2 };
    let keys = |first, second| vec![(0, key(first)), (1, key(second))];
    tier.restore(2, 7, &[(place(2, 7, 1), keys(1, 2)), (place(2, 7, 4), keys(3, 4))], 7);
    // A later copy of the same content counts.
    tier.restore(0, 9, &[(place(0, 9, 1), keys(1, 5))], 4);
    tier.set_aside(1, 8);
    tier.assert_sound();
    assert_eq!(tier.find(key(1)), Some(TierPlace { record: place(0, 9, 1), index: 0 }));
    assert_eq!(tier.find(key(4)), Some(TierPlace { record: place(2, 7, 4), index: 1 }));
    assert_eq!(tier.reclaim(), Some(Reclaim { segment: 1, carried: Vec::new(), dropped: Vec::new() }));
    let record = tier.reserve(&[(key(9), 0)]).expect("a segment is free");
    assert_eq!((record.segment, record.generation), (3, 10));
    tier.written(record, &[key(9)], true);
    tier.assert_sound();
}

#[test]
fn blocks_that_are_swapped_out_fill_segments_to_the_end() {
    // A segment has room for 25: records of 1 to 4 blocks take 2 to 5.
    let mut tier = Tier::new(KvTierConfig { spare_segments: 0, ..config(3, 0.0) });
    let reserve = |tier: &mut Tier, count: usize, segments_max: usize, held: &[u32]| {
        let sizes = tier.records_for(count, segments_max, |segment| held.contains(&segment))?;
        let place = |&blocks: &usize| {
            let contents = vec![(BlockKey::NAMELESS, 0); blocks];
            let record = tier.reserve(&contents).expect("there is room");
            tier.written(record, &vec![BlockKey::NAMELESS; blocks], true);
            tier.hold(record.segment);
            record
        };
        let places: Vec<_> = sizes.iter().map(place).collect();
        tier.assert_sound();
        Ok((sizes, places.iter().map(|place| place.segment).collect::<Vec<_>>()))
    };
    assert_eq!(reserve(&mut tier, 18, 0, &[]), Err(NoRecords::NotAllowed), "no segment may be held");
    assert_eq!(reserve(&mut tier, 18, 1, &[]), Ok((vec![4, 4, 4, 4, 2], vec![0; 5])));
    assert_eq!(reserve(&mut tier, 3, 1, &[0]), Ok((vec![1, 2], vec![0, 1])), "what is left is used");
    assert_eq!(reserve(&mut tier, 20, 0, &[0, 1]), Err(NoRecords::NotAllowed), "a third segment would be held");
    assert_eq!(reserve(&mut tier, 60, 3, &[0, 1]), Err(NoRecords::NotFree), "there is no such room");
    assert_eq!(reserve(&mut tier, 60, 2, &[0, 1]), Err(NoRecords::NotAllowed), "emptied segments would not help");
    assert_eq!(reserve(&mut tier, 20, 1, &[0, 1]).expect("there is room").1, [1, 1, 1, 1, 1, 2]);
    assert_eq!(tier.reclaim_for(1), None, "all is held");
    assert_eq!((tier.len(), tier.num_free_segments()), (0, 0), "nobody can find any of it");
    (0..5).for_each(|_| tier.release(0));
    tier.release(0);
    assert_eq!(tier.reclaim_for(1).map(|reclaim| reclaim.segment), Some(0));
    assert_eq!(tier.num_free_segments(), 1);
    // A tier that carries contents over leaves a segment free for that.
    let tier = Tier::new(config(3, 0.0));
    assert!(tier.records_for(40, 3, |_| false).is_ok() && tier.records_for(41, 3, |_| false).is_err());
}

#[test]
fn segments_that_cannot_be_made_are_replaced_by_the_oldest() {
    let mut tier = Tier::new(config(8, 0.0));
    let mut number = 0;
    // The disk has room for three segments.
    let mut add = |tier: &mut Tier, can_grow: bool| {
        number += 1;
        let reclaimed = tier.reclaim().map(|reclaim| reclaim.segment);
        let Some(record) = tier.reserve(&[(key(number), 0); 1]) else { return (reclaimed, None) };
        let well = record.segment < 3 || can_grow;
        tier.written(record, &[key(number)], well);
        if !well {
            tier.withhold_new();
        }
        tier.assert_sound();
        (reclaimed, well.then_some(record.segment))
    };
    let segments: Vec<_> = (0..37).map(|_| add(&mut tier, false).1).collect();
    // A segment has room for 12 records of one block.
    assert!(segments[..36].iter().zip(0..).all(|(&segment, at)| segment == Some(at / 12)));
    assert_eq!(segments[36], None, "the fourth cannot be made");
    assert_eq!((tier.num_free_segments(), tier.is_without_segments()), (0, false));
    let later: Vec<_> = (0..60).filter_map(|_| add(&mut tier, false).1).collect();
    assert!(later.len() > 40 && later.contains(&0) && later.contains(&1), "{later:?}");
    tier.offer_new();
    tier.assert_sound();
    assert!((0..60).filter_map(|_| add(&mut tier, true).1).any(|segment| segment > 2), "there is room again");
    let mut empty = Tier::new(config(4, 0.0));
    empty.withhold_new();
    assert!(empty.is_without_segments() && empty.reserve(&[(key(1), 0)]).is_none());
}
