//! The making of a network from its shape: hosts, switches, the cables between them, and the pairs of flows.

use trial::rng::Rng;

use crate::config::{CableSpec, Config, Pattern, Shape};
use crate::port::Owner;

/// A cable.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    /// Its ends.
    pub ends: [Owner; 2],
    /// The link from each end to the other.
    pub links: [CableSpec; 2],
}

/// Everything that a network is built of.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// How many hosts there are; each has one cable.
    pub hosts: u32,
    /// How many switches there are.
    pub switches: u32,
    /// The cables.
    pub cables: Vec<Cable>,
    /// Cables whose queue, at their first end, the network's figures are about.
    pub watched: Vec<usize>,
}

impl Plan {
    /// The hosts, switches and cables of a network.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut plan = Self::default();
        match config.shape {
            Shape::Dumbbell { pairs } => {
                plan.switches = 2;
                plan.add_hosts(config, pairs, 0);
                plan.add_hosts(config, pairs, 1);
                let between = plan.trunk(config, 0, 1);
                plan.watched.push(between);
            }
            Shape::ParkingLot { behind } => {
                plan.switches = 2;
                plan.add_hosts(config, behind, 0);
                plan.add_hosts(config, 2, 1);
                let between = plan.trunk(config, 0, 1);
                plan.watched.push(between);
                plan.watched.push(behind as usize + 1);
            }
            Shape::Incast { senders } => {
                plan.switches = 1;
                plan.add_hosts(config, senders + 1, 0);
                plan.watched.push(senders as usize);
            }
            Shape::LeafSpine { leaves, spines, hosts } => {
                plan.switches = leaves + spines;
                for leaf in 0..leaves {
                    plan.add_hosts(config, hosts, leaf);
                }
                for leaf in 0..leaves {
                    for spine in 0..spines {
                        plan.trunk(config, leaf, leaves + spine);
                    }
                }
            }
            Shape::Ring { switches } => {
                plan.switches = switches;
                for switch in 0..switches {
                    plan.add_hosts(config, 1, switch);
                }
                for switch in 0..switches {
                    let cable = plan.trunk(config, switch, (switch + 1) % switches);
                    plan.watched.push(cable);
                }
            }
            Shape::FatTree { ports } => plan.fat_tree(config, ports),
        }
        plan
    }

    /// Pods of edge and aggregation switches, half of the ports of each up and half down; then the core.
    fn fat_tree(&mut self, config: &Config, ports: u32) {
        let half = ports / 2;
        let (edges, core) = (ports * half, 2 * ports * half);
        self.switches = core + half * half;
        for edge in 0..edges {
            self.add_hosts(config, half, edge);
        }
        for edge in 0..edges {
            let pod = edge / half;
            for number in 0..half {
                self.trunk(config, edge, edges + pod * half + number);
            }
        }
        for aggregation in 0..edges {
            for number in 0..half {
                let group = aggregation % half;
                self.trunk(config, edges + aggregation, core + group * half + number);
            }
        }
    }

    /// Adds hosts on a switch. The first end of their cables is the switch's.
    fn add_hosts(&mut self, config: &Config, count: u32, switch: u32) {
        for _ in 0..count {
            let ends = [Owner::Switch(switch), Owner::Host(self.hosts)];
            self.cables.push(Cable { ends, links: [config.host; 2] });
            self.hosts += 1;
        }
    }

    fn trunk(&mut self, config: &Config, one: u32, other: u32) -> usize {
        let ends = [Owner::Switch(one), Owner::Switch(other)];
        self.cables.push(Cable { ends, links: [config.trunk; 2] });
        self.cables.len() - 1
    }

    /// How many pairs of hosts have flows of a pattern, at most.
    #[must_use]
    pub fn count(&self, pattern: &Pattern) -> u64 {
        let hosts = u64::from(self.hosts);
        match pattern {
            Pattern::AllToAll => hosts * hosts,
            Pattern::Shape | Pattern::Permutation => hosts,
            Pattern::Pairs(pairs) => pairs.len() as u64,
        }
    }

    /// The pairs of hosts between which flows of a pattern go.
    #[must_use]
    pub fn pairs(&self, shape: Shape, pattern: &Pattern, rng: &mut Rng) -> Vec<(u32, u32)> {
        let hosts = self.hosts;
        match (pattern, shape) {
            (Pattern::Shape, Shape::Dumbbell { pairs }) => {
                (0..pairs).map(|host| (host, host + pairs)).collect()
            }
            (Pattern::Shape, Shape::ParkingLot { .. } | Shape::Incast { .. }) => {
                (0..hosts - 1).map(|host| (host, hosts - 1)).collect()
            }
            (Pattern::Shape, Shape::Ring { .. }) => {
                (0..hosts).map(|host| (host, (host + 2) % hosts)).collect()
            }
            (Pattern::Shape, Shape::LeafSpine { .. } | Shape::FatTree { .. }) => (0..hosts)
                .map(|host| (host, (host + hosts / 2) % hosts))
                .filter(|(from, to)| from != to)
                .collect(),
            (Pattern::Permutation, _) => {
                // One round through all hosts in an order that is drawn; one that is alone sends nothing.
                let mut order: Vec<u32> = (0..hosts).collect();
                for last in (1..order.len()).rev() {
                    order.swap(last, rng.below(last as u64 + 1) as usize);
                }
                let next = order.iter().cycle().skip(1);
                let mut pairs: Vec<_> = order.iter().copied().zip(next.copied()).collect();
                pairs.retain(|(from, to)| from != to);
                pairs.sort_unstable();
                pairs
            }
            // Step by step: in each, every host sends to another one, and none receives from two.
            (Pattern::AllToAll, _) => (1..hosts)
                .flat_map(|further| (0..hosts).map(move |from| (from, (from + further) % hosts)))
                .collect(),
            (Pattern::Pairs(pairs), _) => pairs.iter().map(|[from, to]| (*from, *to)).collect(),
        }
    }
}
