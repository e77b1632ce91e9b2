//! How far each head steps at each token, and the factors by which heads keep their states.

use super::StateSpace;
use crate::delta_rule::{softplus, widened};
use crate::pool::Pool;
use crate::{DecayForm, Matrix, Share};

/// The cost of the functions of one head's step, in multiply-adds.
const STEP_COST: usize = 200;

/// The number of heads whose rates and biases are read at a time.
const HEADS: usize = 64;

/// Replaces `steps` by how far each head steps, and writes the factors with which heads keep their states to `decays`.
pub(super) fn find_steps(
    pool: &Pool,
    heads: usize,
    space: &StateSpace,
    [steps, decays]: [&mut [f32]; 2],
    [rates, bias]: [Matrix<'_>; 2],
) {
    let [least, most] = space.limits;
    let tokens = steps.len() / heads;
    let (steps, decays) = (Share::new(steps), Share::new(decays));
    pool.split(tokens, 1, STEP_COST * heads, |tokens| {
        for first in (0..heads).step_by(HEADS) {
            let own = first..heads.min(first + HEADS);
            let [rates, bias] = [rates, bias].map(|vector| widened::<HEADS>(vector, &own));
            for token in tokens.clone() {
                // SAFETY: each token is in one thread's share only.
                let [steps, decays] =
                    unsafe { [steps, decays].map(|all| all.slice(token * heads + own.start, own.len())) };
                for head in 0..own.len() {
                    let rate = match space.decay {
                        DecayForm::Logarithm => -libm::expf(rates[head]),
                        DecayForm::NegativeRate => rates[head],
                    };
                    steps[head] = softplus(steps[head] + bias[head]).clamp(least, most);
                    decays[head] = libm::expf(rate * steps[head]);
                }
            }
        }
    });
}
