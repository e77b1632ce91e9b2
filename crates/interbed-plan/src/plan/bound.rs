//! Computes lower bounds that no policy can beat, by disk, link, memory and arithmetic. This is pure arithmetic.

use crate::words::{number, scaled};

/// Counts the bytes and operations of one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pass {
    /// Bytes of weights that the pass touches; `W` in formulas.
    pub weights: f64,
    /// Bytes of weights kept in host memory; `M_h` in formulas.
    pub host: f64,
    /// Bytes of weights kept in device memory; `M_d` in formulas.
    pub device: f64,
    /// Bytes of keys and values that attention reads.
    pub kv: f64,
    /// Number of operations of the pass: two for each weight and token, `2 P n` in formulas.
    pub operations: f64,
}

/// Rates of a machine, in bytes and operations per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    /// Bytes per second that the disk gives; `B_s` in formulas.
    pub disk: f64,
    /// Bytes per second that the cores read from host memory; `B_h` in formulas.
    pub host: f64,
    /// Operations per second of the GPU, or of the cores if there is none; `F` in formulas. Infinite if it is left
    /// out.
    pub flops: f64,
    /// Operations per second of the processor that works beside the GPU.
    pub host_flops: f64,
    /// Bytes per second of the link to the GPU, `B_p`, and of the GPU's memory, `B_d`; `None` without a GPU.
    pub device: Option<(f64, f64)>,
}

/// One of the lower bounds on the time of a pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Term {
    /// Resource that takes this time, such as the disk or arithmetic.
    pub name: &'static str,
    /// Formula of the time, in symbols.
    pub formula: &'static str,
    /// The formula with numbers.
    pub numbers: String,
    /// Time in seconds.
    pub seconds: f64,
}

/// The least time that a pass takes, which is the longest of its terms.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bound {
    pub terms: Vec<Term>,
}

impl Bound {
    /// Computes the bound of a pass. If there is a device, it computes everything, except that the host computes with
    /// the weights that it holds if that is faster than copying them.
    pub fn of(pass: &Pass, rates: &Rates) -> Self {
        if let Some((link, memory)) = rates.device
            && pass.host_computes(rates)
        {
            return Self::of_both(pass, rates, link, memory);
        }
        let Pass { weights, host, device, kv, operations } = *pass;
        let streamed = pass.streamed();
        let mut terms = Vec::new();
        let mut term = |name, formula, numbers: String, seconds| terms.push(Term { name, formula, numbers, seconds });
        match rates.device {
            None => {
                term("disk", "(W - M_h) / B_s", quotient(&[weights, -host], rates.disk), streamed / rates.disk);
                let moved = weights + streamed + kv;
                let numbers = quotient(&[weights, streamed, kv], rates.host);
                term("memory", "(W + (W - M_h) + KV) / B_h", numbers, moved / rates.host);
            }
            Some((link, memory)) => {
                let numbers = quotient(&[weights, -host, -device], rates.disk);
                term("disk", "(W - M_h - M_d) / B_s", numbers, streamed / rates.disk);
                let copied = (weights - device).max(0.0);
                term("link", "(W - M_d) / B_p", quotient(&[weights, -device], link), copied / link);
                term("device memory", "(W + KV) / B_d", quotient(&[weights, kv], memory), (weights + kv) / memory);
            }
        }
        if rates.flops.is_finite() {
            let numbers = format!("{} / {}", scaled(operations, "FLOP"), scaled(rates.flops, "FLOP/s"));
            term("arithmetic", "2 P n / F", numbers, operations / rates.flops);
        }
        Self { terms }
    }

    /// Computes the bound if the host computes with the weights that it holds, so that only activations and weights
    /// that stay in no memory cross the link.
    fn of_both(pass: &Pass, rates: &Rates, link: f64, memory: f64) -> Self {
        let (streamed, host) = (pass.streamed(), pass.on_host());
        let rest = pass.weights - host;
        let both = format!("{} + {}", quotient(&[rest, pass.kv], memory), quotient(&[host], rates.host));
        let nowhere = [pass.weights, -pass.host, -pass.device];
        let (numbers, over_link) = (quotient(&nowhere, rates.disk), quotient(&nowhere, link));
        let term = |name, formula, numbers, seconds| Term { name, formula, numbers, seconds };
        let both_memories = (rest + pass.kv) / memory + host / rates.host;
        Self {
            terms: vec![
                term("disk", "(W - M_h - M_d) / B_s", numbers, streamed / rates.disk),
                term("link", "(W - M_h - M_d) / B_p", over_link, streamed / link),
                term("both memories", "(W - M_h + KV) / B_d + M_h / B_h", both, both_memories),
            ],
        }
    }

    /// Returns the term that takes longest, which is the bound.
    pub fn binding(&self) -> &Term {
        let longest = self.terms.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        longest.expect("a bound has terms")
    }

    /// Returns the bound in seconds.
    pub fn seconds(&self) -> f64 {
        self.binding().seconds
    }
}

impl Pass {
    /// Returns the bytes of weights that are in host memory and not in the device's.
    pub fn on_host(&self) -> f64 {
        self.host.min(self.weights - self.device).max(0.0)
    }

    /// Returns whether the host computes with the weights that it holds in less time than copying them takes.
    pub fn host_computes(&self, rates: &Rates) -> bool {
        let Some((link, _)) = rates.device else { return false };
        let (host, share) = (self.on_host(), self.on_host() / self.weights.max(1.0));
        (host / rates.host).max(self.operations * share / rates.host_flops) < host / link
    }

    /// Returns the bytes of weights that come from disk.
    pub fn streamed(&self) -> f64 {
        (self.weights - self.host - self.device).max(0.0)
    }
}

/// Writes a quotient of bytes and a rate, for instance `(139.0 - 85.0 GB) / 4.45 GB/s`.
fn quotient(terms: &[f64], rate: f64) -> String {
    let largest = terms.iter().fold(0.0, |largest: f64, term| largest.max(term.abs()));
    let (factor, unit) = if largest < 1e9 { (1e6, "MB") } else { (1e9, "GB") };
    let mut text = String::new();
    for (index, term) in terms.iter().enumerate().filter(|(index, term)| *index == 0 || **term != 0.0) {
        let sign = if *term < 0.0 { " - " } else { " + " };
        text.push_str(if index == 0 { "" } else { sign });
        text.push_str(&number(term.abs() / factor));
    }
    let text = if text.contains(' ') { format!("({text} {unit})") } else { format!("{text} {unit}") };
    format!("{text} / {}", scaled(rate, "B/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu_of_16_gb(disk: f64) -> (Pass, Rates) {
        let pass = Pass { weights: 136.9e9, host: 85e9, device: 9e9, kv: 0.0, operations: 2.0 * 68.45e9 };
        (pass, Rates { disk, host: 60e9, flops: 1e14, host_flops: 2e12, device: Some((41.5e9, 960e9)) })
    }

    #[test]
    fn a_gpu_of_16_gb_is_bound_by_the_disk() {
        let (pass, rates) = gpu_of_16_gb(4.45e9);
        let bound = Bound::of(&pass, &rates);
        assert_eq!(bound.binding().name, "disk");
        assert!((bound.seconds() - 9.64).abs() < 0.01, "{bound:?}");
        for (disk, seconds) in [(3e9, 45.6), (3.5e9, 39.1), (4.45e9, 30.8)] {
            let ring = Pass { host: 0.0, device: 0.0, ..pass };
            assert!((Bound::of(&ring, &gpu_of_16_gb(disk).1).seconds() - seconds).abs() < 0.05, "{disk}");
        }
    }

    #[test]
    fn each_term_can_bind() {
        let (pass, rates) = gpu_of_16_gb(1e12);
        let name = |pass: &Pass, rates: &Rates| Bound::of(pass, rates).binding().name;
        assert_eq!(name(&pass, &rates), "both memories");
        let rates = Rates { host: 40e9, ..rates };
        assert_eq!(name(&pass, &rates), "link");
        assert_eq!(name(&pass, &Rates { device: Some((1e12, 100e9)), ..rates }), "device memory");
        assert_eq!(name(&Pass { operations: 1e15, ..pass }, &rates), "arithmetic");
        let rates = Rates { host: 60e9, ..rates };
        let host = Rates { device: None, ..rates };
        assert_eq!(name(&pass, &host), "memory");
        // What is streamed crosses host memory twice.
        let bound = Bound::of(&Pass { device: 0.0, ..pass }, &host);
        assert!((bound.terms[1].seconds - (136.9 + 51.9) / 60.0).abs() < 1e-9, "{bound:?}");
        let sides = Bound::of(&pass, &rates);
        assert!((sides.terms[1].seconds - 42.9 / 41.5).abs() < 1e-9, "{sides:?}");
        assert!((sides.terms[2].seconds - (51.9 / 960.0 + 85.0 / 60.0)).abs() < 1e-9, "{sides:?}");
        assert!(pass.host_computes(&rates) && !Pass { operations: 1e13, ..pass }.host_computes(&rates));
        assert!(!pass.host_computes(&Rates { device: Some((61e9, 960e9)), ..rates }));
    }
}
