//! Writing a packed store: region by region, so that an interrupted run can be continued, and read back at the end.

use std::ops::{ControlFlow, Range};

use strata_io::{RandomAccessFile, TargetError, WriteTarget, signature};
use strata_kernels::DType;
use xxhash_rust::xxh3::Xxh3;

use super::check::{Stop, checksums};
use super::checksum::Checksum;
use super::coding::{Coder, extent_of};
use super::error::StoreProblem;
use super::format::{Head, Manifest, PAGE_BYTES, Region, encode, is_store, is_unfinished, read_unfinished};
use super::layout::StorePlan;
use super::source::source;
use crate::catalog::Catalog;
use crate::chunks::{Extent, for_each_chunk};
use crate::error::WeightError;
use crate::safetensors::ElementType;

/// After so many bytes, what was written is brought to the disk and noted, and its cached pages are dropped.
const SYNC_BYTES: u64 = 256 << 20;
/// What lies in so many bytes at the beginning of a device must not be lost by mistake.
const INSPECTED_BYTES: u64 = 1 << 20;
/// Zeros to fill up with.
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// What a run of [`write_store`] is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackPhase {
    /// Reading the model, to see which matrices are worth coding: before [`write_store`].
    Measuring,
    /// Reading what an interrupted run has left.
    Resuming,
    /// Writing.
    Writing,
    /// Reading back what was written.
    Verifying,
}

/// What a run of [`write_store`] has made.
#[derive(Debug, Clone)]
pub struct PackReport {
    /// Bytes of the store.
    pub bytes: u64,
    /// Bytes that an interrupted run had left, and that were found whole.
    pub bytes_resumed: u64,
    /// What the store holds, with all checksums.
    pub manifest: Manifest,
}

/// Refuses a device that holds anything but zeros or an unfinished store in its first MiB. A file is always right.
///
/// # Errors
/// [`StoreProblem::Occupied`] with what lies there, or a failed read.
pub fn inspect_target(target: &WriteTarget) -> Result<(), WeightError> {
    if !target.is_device() {
        return Ok(());
    }
    let reader = target.reader()?;
    let mut begin = vec![0; reader.len().min(INSPECTED_BYTES) as usize];
    reader.read_exact_at(&mut begin, 0)?;
    if is_unfinished(&begin) || begin.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let found = is_store(&begin).then_some("a packed store").or_else(|| signature(&begin));
    let found = found.unwrap_or("data of a kind that is not known").to_owned();
    Err(refused(target, StoreProblem::Occupied { found }))
}

/// Writes the store that `plan` lays out for `catalog`, going on where an interrupted run of the same plan has stopped;
/// reads all of it back and compares checksums; then makes it appear. `watch(phase, bytes done, bytes in all)` is
/// called after each piece; at `Break` the run ends as an interruption does. Memory is a few buffers, whatever the
/// model's size.
///
/// # Errors
/// Too little room (nothing is left then), a failed read or write, a source that has changed, bytes that do not come
/// back as they were written, [`StoreProblem::Stopped`]. What was written so far is kept under its temporary name, or
/// on the device without being a store.
pub fn write_store(
    catalog: &Catalog,
    plan: &StorePlan,
    target: WriteTarget,
    watch: &mut dyn FnMut(PackPhase, u64, u64) -> ControlFlow<()>,
) -> Result<PackReport, WeightError> {
    let total = plan.total_bytes;
    let (manifest, kept) = resume(plan, &target, watch)?;
    if kept == 0 {
        target.clear()?;
    }
    if let Err(error) = target.reserve(total) {
        // Nothing of worth is lost, and the disk is full.
        if kept == 0 && matches!(error, TargetError::NoRoom { .. }) {
            target.discard()?;
        }
        return Err(error.into());
    }
    let mut writer = Writer::new(&target, manifest, total, kept);
    writer.note_progress()?;
    // A store that lay there before must be none before its bytes are replaced.
    target.sync()?;
    let outcome = writer.write(catalog, plan, watch);
    // At a failure too, so that the next run need not do again what is done; the failure itself says more than another.
    let noted = writer.note_progress();
    outcome?;
    noted?;
    let (manifest, bytes_resumed) = (writer.manifest, writer.resumed);

    if source(catalog)? != plan.manifest.source {
        return Err(changed(catalog));
    }
    verify(&manifest, &target, total, watch)?;

    let head = encode(&manifest, total, true);
    let (header, rest) = head.split_at(PAGE_BYTES as usize);
    target.write_all_at(rest, PAGE_BYTES)?;
    target.sync()?;
    target.write_all_at(header, 0)?;
    target.commit()?;
    Ok(PackReport { bytes: total, bytes_resumed, manifest })
}

fn changed(catalog: &Catalog) -> WeightError {
    let file = catalog.files().first().map(|file| file.path().to_owned()).unwrap_or_default();
    WeightError::Store { file, problem: Box::new(StoreProblem::SourceChanged) }
}

fn refused(target: &WriteTarget, problem: StoreProblem) -> WeightError {
    WeightError::Store { file: target.path().to_owned(), problem: Box::new(problem) }
}

/// The manifest with the checksums of those first regions that are there already, and their number.
fn resume(
    plan: &StorePlan,
    target: &WriteTarget,
    watch: &mut dyn FnMut(PackPhase, u64, u64) -> ControlFlow<()>,
) -> Result<(Manifest, usize), WeightError> {
    let fresh = || Ok((plan.manifest.clone(), 0));
    let reader = target.reader()?;
    // Whatever cannot be believed is written anew.
    let Ok(Head { manifest: mut left, total_bytes }) = read_unfinished(&reader) else { return fresh() };
    let regions: Vec<Region> = left.regions().take_while(|region| region.checksum != Checksum::default()).collect();
    left.checksums_mut().for_each(|checksum| *checksum = Checksum::default());
    if left != plan.manifest || total_bytes != plan.total_bytes {
        return fresh();
    }
    let (mut done, total) = (0, regions.iter().map(|region| region.bytes).sum());
    let found = checksums(&reader, &regions, &mut |bytes| {
        done += bytes;
        watch(PackPhase::Resuming, done, total)
    });
    let found = found.map_err(|Stop| refused(target, StoreProblem::Stopped))?;
    let whole = |(region, found): &(&Region, &Result<Checksum, _>)| matches!(found, Ok(sum) if *sum == region.checksum);
    let kept = regions.iter().zip(&found).take_while(whole).count();
    for (checksum, region) in left.checksums_mut().zip(&regions[..kept]) {
        *checksum = region.checksum;
    }
    Ok((left, kept))
}

/// Reads everything back.
fn verify(
    manifest: &Manifest,
    target: &WriteTarget,
    total: u64,
    watch: &mut dyn FnMut(PackPhase, u64, u64) -> ControlFlow<()>,
) -> Result<(), WeightError> {
    let regions: Vec<Region> = manifest.regions().collect();
    let mut done = 0;
    let found = checksums(&target.reader()?, &regions, &mut |bytes| {
        done += bytes;
        watch(PackPhase::Verifying, done, total)
    });
    let found = found.map_err(|Stop| refused(target, StoreProblem::Stopped))?;
    for (region, found) in regions.into_iter().zip(found) {
        let (found, expected) = (found?, region.checksum);
        if found != expected {
            let Region { name, offset, bytes, .. } = region;
            let problem = StoreProblem::RegionChecksum { region: name, offset, end: offset + bytes, expected, found };
            return Err(refused(target, problem));
        }
    }
    Ok(())
}

/// Where a tensor comes.
struct Destination {
    region: usize,
    /// In the store.
    offset: u64,
    /// Columns and patches, if it is to be coded.
    coded: Option<(usize, u16)>,
}

/// Where writing is.
struct Writer<'a> {
    target: &'a WriteTarget,
    manifest: Manifest,
    regions: Vec<Region>,
    total: u64,
    /// Regions that are whole, in front.
    done: usize,
    /// The next byte to be written.
    position: u64,
    /// Everything before it is on the disk.
    synced: u64,
    /// Bytes of regions that an earlier run has left.
    resumed: u64,
    /// Of the bytes of the region that is being written.
    hash: Xxh3,
}

impl<'a> Writer<'a> {
    fn new(target: &'a WriteTarget, manifest: Manifest, total: u64, done: usize) -> Self {
        let regions: Vec<Region> = manifest.regions().collect();
        let position = regions.get(done).map_or(total, |region| region.offset);
        let resumed = regions[..done].iter().map(|region| region.bytes).sum();
        Self { target, manifest, regions, total, done, position, synced: position, resumed, hash: Xxh3::new() }
    }

    /// Writes all regions that are not there.
    fn write(
        &mut self,
        catalog: &Catalog,
        plan: &StorePlan,
        watch: &mut dyn FnMut(PackPhase, u64, u64) -> ControlFlow<()>,
    ) -> Result<(), WeightError> {
        let total = self.total;
        for content in plan.contents.iter().skip(self.done) {
            self.put(content)?;
            self.finish_region()?;
        }
        let (extents, places) = self.extents(catalog, plan);
        let files: Vec<_> = catalog.files().iter().map(|file| file.as_ref()).collect();
        let mut coder = None;
        for_each_chunk(&files, &extents, |chunk| {
            if chunk.offset == extents[chunk.extent].offset {
                let Destination { region, offset, coded } = places[chunk.extent];
                while self.done < region {
                    self.finish_region()?;
                }
                self.fill_up_to(offset)?;
                coder = coded.map(|(cols, patches)| Coder::new(cols, patches));
            }
            let bytes = chunk.outcome?;
            let coded = coder.as_mut().map_or(Some(bytes), |coder| coder.code(bytes));
            // Rows were measured before.
            self.put(coded.ok_or_else(|| changed(catalog))?)?;
            match watch(PackPhase::Writing, self.position, total) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(refused(self.target, StoreProblem::Stopped)),
            }
        })?;
        while self.done < self.regions.len() {
            self.finish_region()?;
        }
        Ok(())
    }

    /// Where the tensors that are missing lie in the catalog, and where each comes.
    fn extents(&self, catalog: &Catalog, plan: &StorePlan) -> (Vec<Extent>, Vec<Destination>) {
        let groups = plan.manifest.groups.iter().enumerate();
        let missing =
            groups.map(|(index, group)| (plan.contents.len() + index, group)).skip_while(|(r, _)| *r < self.done);
        let tensors = missing.flat_map(|(region, group)| group.tensors.iter().map(move |tensor| (region, tensor)));
        let placed = tensors.filter_map(|(region, tensor)| {
            // The plan was made from this catalog.
            let entry = catalog.get(&tensor.name)?;
            // What is coded there already stays as it is.
            let plain = entry.element_type == ElementType::Known(DType::BF16);
            let coded = tensor.patches.filter(|_| plain).zip(entry.shape.last());
            let coded = coded.map(|(patches, &cols)| (cols, patches));
            Some((extent_of(entry), Destination { region, offset: tensor.offset, coded }))
        });
        placed.unzip()
    }

    /// Writes the next bytes of the region.
    fn put(&mut self, bytes: &[u8]) -> Result<(), WeightError> {
        self.target.write_all_at(bytes, self.position)?;
        self.hash.update(bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Zeros, up to `position`. Gaps are shorter than a page.
    fn fill_up_to(&mut self, position: u64) -> Result<(), WeightError> {
        while self.position < position {
            let bytes = PAGE_BYTES.min(position - self.position);
            self.put(&ZEROS[..bytes as usize])?;
        }
        Ok(())
    }

    /// The region is whole but for its padding.
    fn finish_region(&mut self) -> Result<(), WeightError> {
        let Range { end, .. } = range(&self.regions[self.done]);
        self.fill_up_to(end)?;
        let checksum = Checksum(self.hash.digest128());
        self.hash.reset();
        if let Some(slot) = self.manifest.checksums_mut().nth(self.done) {
            *slot = checksum;
        }
        self.done += 1;
        if self.position - self.synced >= SYNC_BYTES { self.note_progress() } else { Ok(()) }
    }

    /// Brings what was written to the disk, then notes in the manifest what is whole.
    fn note_progress(&mut self) -> Result<(), WeightError> {
        self.target.sync()?;
        self.target.reader()?.drop_cache(self.synced..self.position);
        self.synced = self.position;
        self.target.write_all_at(&encode(&self.manifest, self.total, false), 0)?;
        Ok(())
    }
}

fn range(region: &Region) -> Range<u64> {
    region.offset..region.offset + region.bytes
}
