//! The answers that the engine is at work on: the group of each request, and what samples for all of them.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use interbed_kv::{IdHasher, SequenceId};
use interbed_model::Logits;

use crate::continuation::Continuation;
use crate::group::{Sampling, SequenceGroup, Stage};
use crate::masks::MaskWorkers;
use crate::sampler::Sampler;
use crate::scheduler::{PlannedTokens, Scheduler, StepPlan};
use crate::sequence::GroupId;

#[derive(Default)]
pub(super) struct Answers {
    pub(super) groups: HashMap<GroupId, SequenceGroup, BuildHasherDefault<IdHasher>>,
    sampler: Sampler,
    masks: MaskWorkers,
    /// The sequences that take part in no pass until their masks say which tokens are allowed next.
    pub(super) late: Vec<SequenceId>,
}

impl Answers {
    /// Begins to compute the masks of all sequences for which the pass samples.
    pub(super) fn begin_masks(&mut self, plan: &StepPlan, scheduler: &mut Scheduler) {
        for entry in plan.entries.iter().filter(|entry| entry.samples()) {
            let sequence = scheduler.get_mut(entry.id).expect("a planned sequence is known");
            let group = self.groups.get_mut(&sequence.request.group);
            group.into_iter().for_each(|group| group.policy.begin_masks(sequence, &mut self.masks));
        }
    }

    /// Takes the logits behind the token at `position` of the sequence of `entry`. `late` counts the sequences whose
    /// masks are late.
    pub(super) fn take_row(
        &mut self,
        entry: &PlannedTokens,
        position: usize,
        logits: Logits<'_>,
        late: &mut usize,
        stage: &mut Stage<'_>,
    ) {
        let sequence = stage.scheduler.get_mut(entry.id).expect("a planned sequence is known");
        let group = self.groups.get_mut(&sequence.request.group).expect("its group is known");
        let sampling = Sampling { sampler: &mut self.sampler, eos: stage.ends.eos, late };
        group.policy.take_row(sequence, entry, position, logits, sampling);
    }

    /// Applies the results of a pass that has ended: publishes its blocks, appends its tokens, and ends sequences that
    /// are done.
    pub(super) fn apply(&mut self, plan: &StepPlan, stage: &mut Stage<'_>) {
        // All entries are completed before any sequence is forked.
        for entry in &plan.entries {
            let Some(sequence) = stage.scheduler.get_mut(entry.id) else { continue };
            let group = self.groups.get_mut(&sequence.request.group).expect("its group is known");
            if let Some(accepted) = group.policy.accept(sequence, stage.ends) {
                stage.scheduler.complete(entry, accepted);
            }
        }
        for entry in &plan.entries {
            // The sequence may have ended together with another sequence of its group.
            let Some(group) = stage.scheduler.get_mut(entry.id).map(|sequence| sequence.request.group) else {
                continue;
            };
            self.on_group(group, stage, |group, stage| group.policy.apply(entry, &group.prompt, stage));
            let sequence = stage.scheduler.get_mut(entry.id);
            let continuation = sequence.and_then(|sequence| sequence.continuation.as_ref());
            if continuation.is_some_and(Continuation::is_late) && !self.late.contains(&entry.id) {
                self.late.push(entry.id);
            }
        }
    }

    /// Resumes sequences that took part in no pass because their masks were late, if the masks have come.
    pub(super) fn resume_late(&mut self, stage: &mut Stage<'_>) {
        for id in std::mem::take(&mut self.late) {
            let Some(sequence) = stage.scheduler.get_mut(id) else { continue };
            let is_there = sequence.is_running() && sequence.pending() == 0;
            let Some(continuation) = &mut sequence.continuation else { continue };
            if !continuation.is_late() {
                continue;
            }
            if !is_there || !continuation.can_resume() {
                self.late.push(id);
                continue;
            }
            let group = sequence.request.group;
            let Some(of) = self.groups.get_mut(&group) else { continue };
            let sampling = Sampling { sampler: &mut self.sampler, eos: stage.ends.eos, late: &mut 0 };
            of.policy.resume(id, &of.prompt, sampling, stage);
            if of.policy.is_over() {
                self.groups.remove(&group);
            }
        }
    }

    /// Ends the sequences whose clients have gone.
    pub(super) fn drop_cancelled(&mut self, stage: &mut Stage<'_>) {
        self.groups.retain(|_, group| {
            group.policy.drop_cancelled(&group.prompt, stage);
            !group.policy.is_over()
        });
    }

    /// Calls `act` on a group, and forgets the group if it is over.
    pub(super) fn on_group(
        &mut self,
        id: GroupId,
        stage: &mut Stage<'_>,
        act: impl FnOnce(&mut SequenceGroup, &mut Stage<'_>),
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        act(group, stage);
        if group.policy.is_over() {
            self.groups.remove(&id);
        }
    }
}
