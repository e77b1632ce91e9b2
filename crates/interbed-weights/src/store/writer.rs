//! Writes a packed store region by region, so that an interrupted run can be continued, and reads the store back at the
//! end.

use std::ops::{ControlFlow, Range};

use interbed_io::{RandomAccessFile, TargetError, WriteTarget, signature};
use interbed_kernels::DType;
use xxhash_rust::xxh3::Xxh3;

use super::check::{Stop, checksums};
use super::checksum::Checksum;
use super::coding::{Coder, Joiner, extent_of};
use super::error::StoreProblem;
use super::format::{Head, Manifest, PAGE_BYTES, Region, encode, is_store, is_unfinished, read_unfinished};
use super::layout::StorePlan;
use super::source::source;
use crate::catalog::{Catalog, CatalogEntry};
use crate::chunks::{Extent, for_each_chunk};
use crate::error::WeightError;
use crate::safetensors::ElementType;

/// Number of bytes after which what was written is synced to the disk and noted, and its cached pages are dropped.
const SYNC_BYTES: u64 = 256 << 20;
/// Number of bytes at the beginning of a device that are inspected, so that no data is overwritten by mistake.
const INSPECTED_BYTES: u64 = 1 << 20;
/// Zeros for padding, one page.
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// Phase of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackPhase {
    /// The model is read to find matrices that are worth coding, before [`write_store`] is called.
    Measuring,
    /// The part of the store that an interrupted run wrote is read and checked.
    Resuming,
    /// The store is written.
    Writing,
    /// The whole store is read back and checked.
    Verifying,
}

/// Result of a run of [`write_store`].
#[derive(Debug, Clone)]
pub struct PackReport {
    /// Size of the store in bytes.
    pub bytes: u64,
    /// Number of bytes that an interrupted run had written and that this run kept.
    pub bytes_resumed: u64,
    /// Manifest of the store, with all checksums.
    pub manifest: Manifest,
}

/// Refuses a device whose first MiB contains anything but zeros, unless it begins with an unfinished store. A file is
/// never refused.
///
/// # Errors
/// Fails with [`StoreProblem::Occupied`], which names what the device holds, or if a read fails.
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

/// Writes the store that `plan` lays out for `catalog`, and continues where an interrupted run of the same plan
/// stopped. Finally reads the whole store back, compares its checksums, and commits it under its name. Calls
/// `watch(phase, bytes done, bytes in all)` after each chunk; if `watch` returns `Break`, the run stops and can be
/// continued later. The run needs memory for a few buffers only, whatever the model's size.
///
/// # Errors
/// Fails if a read or a write fails, if a source file has changed, or if bytes differ when they are read back. Fails
/// with [`StoreProblem::Stopped`] if `watch` returned `Break`. After such failures, what was written is kept: in a file
/// under a temporary name, or on the device as an unfinished store. Also fails if the target has too little room; the
/// temporary file is then removed, unless the run continued an earlier one.
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
        // Nothing was resumed that could be lost, and the disk is full.
        if kept == 0 && matches!(error, TargetError::NoRoom { .. }) {
            target.discard()?;
        }
        return Err(error.into());
    }
    let mut writer = Writer::new(&target, manifest, total, kept);
    writer.note_progress()?;
    // A store that was there before must become invalid before its bytes are overwritten.
    target.sync()?;
    let outcome = writer.write(catalog, plan, watch);
    // Progress is noted after a failure too, so that the next run can resume. The first failure is the one returned.
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

/// Returns the manifest with the checksums of the leading regions that are already written, and the number of those
/// regions.
fn resume(
    plan: &StorePlan,
    target: &WriteTarget,
    watch: &mut dyn FnMut(PackPhase, u64, u64) -> ControlFlow<()>,
) -> Result<(Manifest, usize), WeightError> {
    let fresh = || Ok((plan.manifest.clone(), 0));
    let reader = target.reader()?;
    // If what is there cannot be trusted, everything is written anew.
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

/// Reads the whole store back and compares its checksums with those of the manifest.
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

/// Place in the store to which a tensor goes.
struct Destination<'c> {
    entry: &'c CatalogEntry,
    region: usize,
    /// Offset of the tensor's first byte in the store.
    offset: u64,
    /// Number of columns and of patches of a row, if the tensor is to be coded.
    coded: Option<(usize, u16)>,
}

/// Change that the rows of a tensor undergo before they are written.
enum RowCoder {
    /// The rows stay as they are.
    Copied,
    /// The rows are coded.
    Coded(Coder),
    /// The scales of each row, which the source holds in another tensor, are joined to the row.
    Joined(Joiner),
}

impl RowCoder {
    fn of(catalog: &Catalog, entry: &CatalogEntry, coded: Option<(usize, u16)>) -> Result<Self, WeightError> {
        if let Some((cols, patches)) = coded {
            return Ok(Self::Coded(Coder::new(cols, patches)));
        }
        Ok(match (catalog.read_scales(entry)?, entry.shape.last()) {
            (Some(scales), Some(&cols)) => Self::Joined(Joiner::new(cols, scales)),
            _ => Self::Copied,
        })
    }
}

/// State of a run that writes.
struct Writer<'a> {
    target: &'a WriteTarget,
    manifest: Manifest,
    regions: Vec<Region>,
    total: u64,
    /// Number of leading regions that are complete.
    done: usize,
    /// Offset of the next byte to be written.
    position: u64,
    /// Offset before which everything is on the disk.
    synced: u64,
    /// Number of bytes of regions that an earlier run has written.
    resumed: u64,
    /// Hash of the bytes written so far of the current region.
    hash: Xxh3,
}

impl<'a> Writer<'a> {
    fn new(target: &'a WriteTarget, manifest: Manifest, total: u64, done: usize) -> Self {
        let regions: Vec<Region> = manifest.regions().collect();
        let position = regions.get(done).map_or(total, |region| region.offset);
        let resumed = regions[..done].iter().map(|region| region.bytes).sum();
        Self { target, manifest, regions, total, done, position, synced: position, resumed, hash: Xxh3::new() }
    }

    /// Writes all regions that are missing.
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
        let mut coder = RowCoder::Copied;
        for_each_chunk(&files, &extents, |chunk| {
            if chunk.offset == extents[chunk.extent].offset {
                let Destination { entry, region, offset, coded } = places[chunk.extent];
                while self.done < region {
                    self.finish_region()?;
                }
                self.fill_up_to(offset)?;
                coder = RowCoder::of(catalog, entry, coded)?;
            }
            let bytes = chunk.outcome?;
            let coded = match &mut coder {
                RowCoder::Coded(coder) => coder.code(bytes),
                RowCoder::Joined(joiner) => Some(joiner.join(bytes)),
                RowCoder::Copied => Some(bytes),
            };
            // A row that does not fit was changed after it was measured.
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

    /// Returns where the missing tensors lie in the catalog, and where each of them goes.
    fn extents<'c>(&self, catalog: &'c Catalog, plan: &StorePlan) -> (Vec<Extent>, Vec<Destination<'c>>) {
        let groups = plan.manifest.groups.iter().enumerate();
        let missing =
            groups.map(|(index, group)| (plan.contents.len() + index, group)).skip_while(|(r, _)| *r < self.done);
        let tensors = missing.flat_map(|(region, group)| group.tensors.iter().map(move |tensor| (region, tensor)));
        let placed = tensors.filter_map(|(region, tensor)| {
            // Every tensor is in the catalog, from which the plan was made.
            let entry = catalog.get(&tensor.name)?;
            // A matrix that is already coded in the source is copied as it is.
            let plain = entry.element_type == ElementType::Known(DType::BF16);
            let coded = tensor.patches.filter(|_| plain).zip(entry.shape.last());
            let coded = coded.map(|(patches, &cols)| (cols, patches));
            Some((extent_of(entry), Destination { entry, region, offset: tensor.offset, coded }))
        });
        placed.unzip()
    }

    /// Writes the next bytes of the current region.
    fn put(&mut self, bytes: &[u8]) -> Result<(), WeightError> {
        self.target.write_all_at(bytes, self.position)?;
        self.hash.update(bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeros up to `position`, which is less than a page away.
    fn fill_up_to(&mut self, position: u64) -> Result<(), WeightError> {
        while self.position < position {
            let bytes = PAGE_BYTES.min(position - self.position);
            self.put(&ZEROS[..bytes as usize])?;
        }
        Ok(())
    }

    /// Pads the current region, which is otherwise complete, and takes its checksum.
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

    /// Syncs what was written to the disk, then records in the manifest which regions are complete.
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
