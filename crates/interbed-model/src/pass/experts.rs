//! The part of a pass that goes through experts.

use arrayvec::ArrayVec;
use interbed_device::{BandProduct, Command, Device, DeviceError, Queue, Tensor, Weights};
use interbed_kernels::Activation;
use interbed_weights::{EXPERT_MATRICES_MAX, TensorId};

use super::{ForwardError, Pass};
use crate::blueprint::Router;
use crate::route_sink::RoutedRow;
use crate::routes::Routes;

/// What experts are chosen by: parts of one tensor, so that one download brings them to the host.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// All of it.
    pub all: Tensor,
    /// The router's products, `[rows, experts]`.
    pub logits: Tensor,
    /// A vector that is added for the choice, and room for it, `[experts]`.
    pub bias: Option<(TensorId, Tensor)>,
    /// If there is a shared expert, the products whose sigmoids are the factors of its results, `[rows]`, or `None` if
    /// these are 1.
    pub shared: Option<Option<Tensor>>,
}

impl Pass<'_> {
    /// Has `router` choose `chosen` of `experts` for each row, by numbers that come to the host together.
    ///
    /// # Errors
    /// If the device failed.
    pub fn route(
        &mut self,
        router: &Router,
        [chosen, experts]: [usize; 2],
        choice: &Choice,
    ) -> Result<(), DeviceError> {
        self.bring(choice)?;
        find(self.device, self.routes, self.rows, router, [chosen, experts], choice)
    }

    /// Tells the source of weights what `router` would choose of the experts of `group`, which is a later layer.
    ///
    /// # Errors
    /// If the device failed.
    pub fn guess_experts(
        &mut self,
        group: usize,
        router: &Router,
        [chosen, experts]: [usize; 2],
        choice: &Choice,
    ) -> Result<(), DeviceError> {
        self.bring(choice)?;
        find(self.device, self.guessed, self.rows, router, [chosen, experts], choice)?;
        self.weights.guess(group, self.guessed.ranked(chosen));
        Ok(())
    }

    /// Brings what is chosen by to the host.
    fn bring(&mut self, choice: &Choice) -> Result<(), DeviceError> {
        if let Some((bias, out)) = choice.bias {
            let table = &self.weights.vector(bias);
            self.submit(&[Command::Gather { table, rows: &[0], multiplier: 1.0, out }])?;
        }
        self.download(choice.all)
    }

    /// Tells the route sink, if there is one, which experts were chosen: those of `group` in decoder layer `layer`.
    pub fn tell_routes(&mut self, group: usize, layer: usize, chosen: usize) {
        let Some(sink) = &mut self.route_sink else { return };
        let held = |expert| self.weights.holds_expert(group, expert);
        let batch = self.batch;
        for row in 0..self.rows {
            // After the last attention, only the wanted rows are left.
            let of_batch = if self.rows == batch.positions.len() { row } else { batch.wanted_rows[row] as usize };
            let (position, prompt_len) = batch.positions[of_batch];
            let (experts, weights) = self.routes.of_row(row, chosen);
            sink.routed(&RoutedRow {
                layer,
                position,
                of_prompt: position < prompt_len,
                experts,
                weights,
                held: &held,
            });
        }
    }

    /// Begins to bring the experts that were chosen, which are those of `group`.
    ///
    /// # Errors
    /// If they cannot be brought.
    pub fn visit_experts(&mut self, group: usize) -> Result<(), ForwardError> {
        Ok(self.weights.visit(group, self.routes.wanted())?)
    }

    /// Calls `compute` with the number and matrices of each expert that was chosen, as they come.
    ///
    /// # Errors
    /// The first error of `compute`, or if weights cannot be read.
    pub fn each_expert(
        &mut self,
        mut compute: impl FnMut(&mut Self, u32, &[Weights]) -> Result<(), ForwardError>,
    ) -> Result<(), ForwardError> {
        while let Some(expert) = self.weights.next_expert(self.device)? {
            let computed = compute(self, expert.number, &expert.matrices);
            let released = self.weights.release_expert(expert, self.device, self.last);
            computed?;
            released?;
        }
        Ok(())
    }

    /// Of an expert that was chosen: the row of the common tensor where its results begin, and how many there are.
    pub fn rows_of_expert(&self, number: u32) -> (usize, usize) {
        let (first, rows) = self.routes.of(number);
        (first, rows.len())
    }

    /// Copies the rows that go through an expert, each `width` numbers, from `x` to `out`.
    ///
    /// # Errors
    /// If the device failed.
    pub fn take_rows_of_expert(
        &mut self,
        number: u32,
        x: Tensor,
        width: usize,
        out: Tensor,
    ) -> Result<(), DeviceError> {
        let (_, places) = self.routes.of(number);
        let factors = self.routes.ones(places.len());
        let command = Command::Combine { from: x, width, places, factors, out };
        self.last = Some(self.device.submit(Queue::Compute, &[command], &[])?);
        Ok(())
    }

    /// Sums up each row's results, `[rows * chosen (+ rows), width]`, with their weights.
    ///
    /// # Errors
    /// If the device failed.
    pub fn combine_experts(&mut self, results: Tensor, width: usize, out: Tensor) -> Result<(), DeviceError> {
        let (places, factors) = self.routes.sums();
        let command = Command::Combine { from: results, width, places, factors, out };
        self.last = Some(self.device.submit(Queue::Compute, &[command], &[])?);
        Ok(())
    }

    /// Multiplies `x`, rows of `cols` numbers, with whole matrices, each into its result, and adds a vector of biases
    /// if there is one. With `gate`, there are two of them: see [`Command::Products`].
    ///
    /// # Errors
    /// If the device failed.
    pub fn multiply_whole(
        &mut self,
        x: Tensor,
        cols: usize,
        products: &[(&Weights, Option<Weights>, Tensor)],
        gate: Option<Activation>,
    ) -> Result<(), ForwardError> {
        let of_one = products.iter().map(|(weights, bias, out)| BandProduct {
            weights,
            rows: 0..weights.rows(),
            bias: bias.as_ref(),
            out: *out,
        });
        let products: ArrayVec<_, EXPERT_MATRICES_MAX> = of_one.collect();
        self.submit(&[Command::Products { x, cols, products: &products, gate }])?;
        Ok(())
    }
}

/// Finds the routes of `rows` rows by numbers that have come to the host.
fn find(
    device: &mut dyn Device,
    routes: &mut Routes,
    rows: usize,
    router: &Router,
    [chosen, experts]: [usize; 2],
    choice: &Choice,
) -> Result<(), DeviceError> {
    let numbers = &*device.downloaded(choice.all)?;
    let first = choice.all.range().start;
    let part = |tensor: Tensor| &numbers[tensor.range().start - first..tensor.range().end - first];
    routes.begin(rows, choice.shared.map(|factors| factors.map(part)));
    if let Some((_, bias)) = choice.bias {
        routes.bias(experts).copy_from_slice(part(bias));
    }
    routes.find(router, chosen, experts, part(choice.logits));
    Ok(())
}
