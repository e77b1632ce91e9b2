//! Implements the methods of a pass for layers with experts.

use arrayvec::ArrayVec;
use interbed_device::{BandProduct, Command, Device, DeviceError, Queue, Tensor, Weights};
use interbed_kernels::Activation;
use interbed_weights::{EXPERT_MATRICES_MAX, TensorId};

use super::{ForwardError, Pass};
use crate::blueprint::Router;
use crate::route_sink::RoutedRow;
use crate::routes::Routes;

/// The numbers from which experts are chosen. All of them lie in one tensor, so that one download copies them to the
/// host.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The tensor that contains all the other tensors.
    pub all: Tensor,
    /// The products with the router's matrix, `[rows, experts]`.
    pub logits: Tensor,
    /// The router's bias, which is added to the scores only while experts are chosen. The first value is the id of the
    /// stored bias vector, and the second is the tensor to which the bias is copied, `[experts]`. `None` if the router
    /// has no such bias.
    pub bias: Option<(TensorId, Tensor)>,
    /// The learned factors of the experts' weights, `[experts]`: the id of the stored vector, and the tensor to which
    /// the vector is copied. `None` if the router has no such factors.
    pub factors: Option<(TensorId, Tensor)>,
    /// The products from which the factors of the shared expert's results are computed, `[rows]`. The sigmoid of a
    /// row's product is the factor of this row. The outer value is `None` if there is no shared expert. The inner value
    /// is `None` if the shared expert's results have no factors.
    pub shared: Option<Option<Tensor>>,
}

impl Pass<'_> {
    /// Copies `choice` to the host and lets `router` choose `chosen` of `experts` experts for each row.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn route(
        &mut self,
        router: &Router,
        [chosen, experts]: [usize; 2],
        choice: &Choice,
    ) -> Result<(), DeviceError> {
        self.bring(choice)?;
        find(self.device, self.routes, self.rows, router, [chosen, experts], choice)
    }

    /// Predicts which experts `router` will choose in the later layer with index `group`, and reports them to the
    /// source of weights.
    ///
    /// # Errors
    /// Fails if the device failed.
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

    /// Brings the numbers of `choice` to the host.
    fn bring(&mut self, choice: &Choice) -> Result<(), DeviceError> {
        for (vector, out) in choice.bias.into_iter().chain(choice.factors) {
            let table = &self.weights.vector(vector);
            self.submit(&[Command::Gather { table, rows: &[0], multiplier: 1.0, out }])?;
        }
        self.download(choice.all)
    }

    /// Reports the chosen experts of each row to the route sink, if there is one. `group` is the index of the mixture
    /// layer in the model's list of layers, `layer` is the number of its decoder layer, and `chosen` is the number of
    /// experts per row.
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

    /// Asks the source of weights to start loading the chosen experts of layer `group`.
    ///
    /// # Errors
    /// Fails if the experts cannot be loaded.
    pub fn visit_experts(&mut self, group: usize) -> Result<(), ForwardError> {
        Ok(self.weights.visit(self.device, group, self.routes.wanted())?)
    }

    /// Calls `compute` with the number and matrices of each chosen expert, in the order in which the experts arrive.
    ///
    /// # Errors
    /// Fails if `compute` fails, or if weights cannot be read.
    pub fn each_expert(
        &mut self,
        mut compute: impl FnMut(&mut Self, u32, &[Weights]) -> Result<(), ForwardError>,
    ) -> Result<(), ForwardError> {
        while let Some(expert) = self.weights.next_expert(self.device)? {
            self.wait_for_copy(expert.copied);
            let computed = compute(self, expert.number, &expert.matrices);
            let released = self.weights.release_expert(expert, self.device, self.last);
            computed?;
            released?;
        }
        Ok(())
    }

    /// Returns where the results of a chosen expert lie in the tensor of all results: the first row, and the number of
    /// rows.
    pub fn rows_of_expert(&self, number: u32) -> (usize, usize) {
        let (first, rows) = self.routes.of(number);
        (first, rows.len())
    }

    /// Copies the rows that go through an expert from `x` to `out`. Each row has `width` elements.
    ///
    /// # Errors
    /// Fails if the device failed.
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

    /// Multiplies the results of each row's experts by their factors, and writes the sum for each row to `out`.
    /// `results` has the shape `[rows * chosen, width]`, or `[rows * (chosen + 1), width]` with a shared expert.
    ///
    /// # Errors
    /// Fails if the device failed.
    pub fn combine_experts(&mut self, results: Tensor, width: usize, out: Tensor) -> Result<(), DeviceError> {
        let (places, factors) = self.routes.sums();
        let command = Command::Combine { from: results, width, places, factors, out };
        self.last = Some(self.device.submit(Queue::Compute, &[command], &[])?);
        Ok(())
    }

    /// Multiplies `x`, which has rows of `cols` elements, by matrices that are entirely in memory. Each entry of
    /// `products` is a matrix, a bias if there is one, and the tensor for the result. With `gate`, there must be two
    /// entries. [`Command::Products`] describes how their products are combined.
    ///
    /// # Errors
    /// Fails if the device failed.
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

/// Finds the routes of `rows` rows by the numbers of `choice`, which have come to the host.
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
    if let Some((_, factors)) = choice.factors {
        routes.expert_factors(experts).copy_from_slice(part(factors));
    }
    routes.find(router, chosen, experts, part(choice.logits));
    Ok(())
}
