//! How nodes are connected: cables between nodes and switches, each direction with its own faults.

use crate::cable::{Cable, Frame, Tally};
use trial::rng::Rng;

/// One direction of a cable.
#[derive(Debug)]
struct Line {
    cable: Cable,
    /// When the last frame in order arrives at its end.
    last: u64,
}

/// All cables, and the way of frames over them.
#[derive(Debug)]
pub struct Fabric {
    nodes: usize,
    lines: Vec<Line>,
    /// The lines from each node to each other (and back to itself), one after the other.
    routes: Vec<Vec<usize>>,
    pub tally: Tally,
}

impl Fabric {
    /// Every node on one switch. The faults are those of the cables from the switch to the nodes;
    /// the other direction takes no time.
    pub fn star(nodes: usize, cable: Cable) -> Self {
        let lines = (0..nodes).map(|_| Line { cable, last: 0 }).collect();
        let routes = (0..nodes * nodes).map(|pair| vec![pair % nodes]).collect();
        Self { nodes, lines, routes, tally: Tally::default() }
    }

    /// A random tree of `switches` switches with the nodes on them; `cable` draws the faults of
    /// each direction of each cable.
    pub fn tree(
        rng: &mut Rng,
        nodes: usize,
        switches: usize,
        mut cable: impl FnMut(&mut Rng) -> Cable,
    ) -> Self {
        // A switch hangs on one with a smaller number; node n is vertex `switches` + n.
        let parents: Vec<usize> = (0..switches + nodes)
            .map(|vertex| rng.below(vertex.clamp(1, switches) as u64) as usize)
            .collect();
        // Of each vertex, the line up and the line down. Those of the root carry nothing.
        let lines = (0..2 * parents.len()).map(|_| Line { cable: cable(rng), last: 0 }).collect();
        let mut routes = Vec::new();
        for from in switches..parents.len() {
            for to in switches..parents.len() {
                routes.push(route(&parents, from, to));
            }
        }
        Self { nodes, lines, routes, tally: Tally::default() }
    }

    /// Sends a frame, at time `at`, over line number `stage` of its way. Gives the copies that
    /// come out with their times, and whether the way ends there.
    pub fn carry(
        &mut self,
        rng: &mut Rng,
        (from, to, stage): (usize, usize, usize),
        at: u64,
        frame: Frame,
    ) -> (Vec<(u64, Frame)>, bool) {
        let route = &self.routes[from * self.nodes + to];
        let line = &mut self.lines[route[stage]];
        let copies = line.cable.carry(rng, at, &mut line.last, frame, &mut self.tally);
        (copies, stage + 1 == route.len())
    }
}

/// The lines from one vertex of a tree to another; a node's way to itself leads over its switch.
fn route(parents: &[usize], from: usize, to: usize) -> Vec<usize> {
    let (mut up, mut down) = (vec![2 * from], vec![2 * to + 1]);
    let (mut one, mut other) = (parents[from], parents[to]);
    while one != other {
        // The larger number is no ancestor of the smaller.
        if one > other {
            up.push(2 * one);
            one = parents[one];
        } else {
            down.push(2 * other + 1);
            other = parents[other];
        }
    }
    up.extend(down.iter().rev());
    up
}

#[test]
fn a_way_through_a_tree_goes_up_and_then_down() {
    // Switches 0, 1 and 2 in a row; nodes 3 on switch 2, 4 on switch 0 and 5 on switch 2.
    let parents = [0, 0, 1, 2, 0, 2];
    assert_eq!(route(&parents, 3, 4), [6, 4, 2, 9]);
    assert_eq!(route(&parents, 4, 3), [8, 3, 5, 7]);
    assert_eq!(route(&parents, 3, 5), [6, 11]);
    assert_eq!(route(&parents, 3, 3), [6, 7]);
}
