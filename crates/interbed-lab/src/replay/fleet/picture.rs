//! Plots what fleets did over the number of servers.

use super::FleetFound;
use super::outcome::Outcome;
use super::route::Route;
use crate::replay::plot::{self, Line, Panel, Role, Unit};

impl FleetFound {
    /// Returns plots of the hit rates, where the trace has hashes, and of how unevenly the servers were loaded.
    pub fn picture(&self) -> String {
        let sizes: Vec<usize> = self.pooled.iter().map(|(servers, _)| *servers).collect();
        let mut panels = Vec::new();
        if self.trace.has_hashes() {
            let mut lines = self.lines(|outcome| outcome.hit_rate(&self.trace));
            let reference = |label: &str, values| Line { label: label.into(), values, role: Role::Reference };
            let pooled = self.pooled.iter().map(|(_, pooled)| pooled.hit_rate(&self.trace)).collect();
            lines.push(reference("pooled", pooled));
            lines.push(reference("endless", sizes.iter().map(|_| self.infinite.0).collect()));
            panels.push(self.panel("Hit rate over servers", Unit::Percent, lines));
        }
        let heading = "Computed tokens: the most of a server, divided by the mean";
        panels.push(self.panel(heading, Unit::Times, self.lines(|outcome| outcome.skew_computed)));
        let heading = "Requests in flight: the most of a server, divided by the mean";
        panels.push(self.panel(heading, Unit::Times, self.lines(|outcome| outcome.skew_in_flight)));
        plot::svg(&self.name, &sizes, &panels)
    }

    fn panel(&self, heading: &str, unit: Unit, lines: Vec<Line>) -> Panel {
        Panel { heading: heading.into(), axis: "servers, logarithmic".into(), unit, lines }
    }

    /// Returns one line for each route, without and with the remote tier.
    fn lines(&self, value: impl Fn(&Outcome) -> f64) -> Vec<Line> {
        let mut lines = Vec::new();
        for route in Route::ALL {
            for remote in [false, true] {
                let of_line = |outcome: &&Outcome| outcome.route == route && outcome.remote_blocks.is_some() == remote;
                let values: Vec<f64> = self.outcomes.iter().filter(of_line).map(&value).collect();
                if values.is_empty() {
                    continue;
                }
                let role = if route == Route::Prefix && !remote { Role::Default } else { Role::Other };
                let label = if remote { format!("{route}, remote") } else { route.to_string() };
                lines.push(Line { label, values, role });
            }
        }
        lines
    }
}
