//! Routes: from each switch the ports on shortest ways to each host.

use std::collections::{HashMap, VecDeque};

use trial::rng::mix;

use crate::config::Route;
use crate::error::Error;
use crate::port::Owner;

/// The ports of each switch that lead to each host.
#[derive(Debug)]
pub struct Routes {
    hosts: usize,
    /// Sets of ports, of which there are few.
    sets: Vec<Box<[u16]>>,
    /// The number of its set, by switch and then host.
    table: Vec<u16>,
    /// The ports of each switch to hosts and along a tree that spans all switches: without circles.
    flood: Vec<Vec<u16>>,
}

/// A switch's neighbours, by its ports' local numbers.
pub type Neighbours = Vec<Vec<Owner>>;

impl Routes {
    /// The shortest ways, but for `forced` ones.
    pub fn new(hosts: u32, neighbours: &Neighbours, forced: &[Route]) -> Result<Self, Error> {
        let mut routes = Self {
            hosts: hosts as usize,
            sets: vec![Box::default()],
            table: vec![0; hosts as usize * neighbours.len()],
            flood: spanning_tree(neighbours),
        };
        let mut numbers = HashMap::from([(Box::default(), 0)]);
        for host in 0..hosts {
            let distances = distances(host, neighbours);
            for (switch, ports) in neighbours.iter().enumerate() {
                let nearer = |neighbour: &Owner| match *neighbour {
                    Owner::Host(other) => other == host,
                    Owner::Switch(other) => distances[other as usize]
                        .zip(distances[switch])
                        .is_some_and(|(theirs, ours)| theirs < ours),
                };
                let set: Box<[u16]> = (0..ports.len() as u16)
                    .filter(|port| nearer(&ports[usize::from(*port)]))
                    .collect();
                routes.set(&mut numbers, switch, host, set);
            }
        }
        for route in forced {
            let unknown = Error::Route { switch: route.switch, to: route.to, via: route.via };
            let ports = neighbours.get(route.switch as usize).filter(|_| route.to < hosts);
            let via = |owner: &Owner| *owner == Owner::Switch(route.via);
            let Some(port) = ports.and_then(|ports| ports.iter().position(via)) else {
                return Err(unknown);
            };
            routes.set(&mut numbers, route.switch as usize, route.to, [port as u16].into());
        }
        for route in forced {
            routes.check(route.to, neighbours)?;
        }
        Ok(routes)
    }

    fn set(
        &mut self,
        numbers: &mut HashMap<Box<[u16]>, u16>,
        switch: usize,
        host: u32,
        set: Box<[u16]>,
    ) {
        let next = self.sets.len() as u16;
        let number = *numbers.entry(set.clone()).or_insert(next);
        if number == next {
            self.sets.push(set);
        }
        self.table[switch * self.hosts + host as usize] = number;
    }

    /// The ports that lead from a switch to a host.
    #[must_use]
    pub fn ports(&self, switch: u32, host: u32) -> &[u16] {
        if host as usize >= self.hosts {
            return &[];
        }
        &self.sets[usize::from(self.table[switch as usize * self.hosts + host as usize])]
    }

    /// The port by which a flow of this hash goes from a switch to a host. Each switch spreads flows in its own way.
    #[must_use]
    pub fn port(&self, switch: u32, host: u32, hash: u32) -> Option<usize> {
        let ports = self.ports(switch, host);
        match ports {
            [] => None,
            [port] => Some((*port).into()),
            _ => {
                let salt = u64::from(switch + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let spread = mix(u64::from(hash) ^ salt) >> 32;
                Some(ports[((spread * ports.len() as u64) >> 32) as usize].into())
            }
        }
    }

    /// The ports by which a frame to all leaves a switch, but for the one by which it came.
    #[must_use]
    pub fn flood(&self, switch: u32) -> &[u16] {
        &self.flood[switch as usize]
    }

    /// Refuses routes to a host that form a circle: each switch must hand on only to those that reach it.
    fn check(&self, host: u32, neighbours: &Neighbours) -> Result<(), Error> {
        let mut reaches = vec![false; neighbours.len()];
        loop {
            let mut changed = false;
            for (switch, ports) in neighbours.iter().enumerate() {
                let set = self.ports(switch as u32, host);
                let hands_on_well = set.iter().all(|port| match ports[usize::from(*port)] {
                    Owner::Host(_) => true,
                    Owner::Switch(other) => reaches[other as usize],
                });
                if hands_on_well && !reaches[switch] {
                    reaches[switch] = true;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        match reaches.iter().position(|reaches| !reaches) {
            Some(switch) => Err(Error::Loop { to: host, switch: switch as u32 }),
            None => Ok(()),
        }
    }
}

/// The ports of each switch to hosts, and those that belong to a tree of all connected switches.
fn spanning_tree(neighbours: &Neighbours) -> Vec<Vec<u16>> {
    let is_host = |owner: &Owner| matches!(owner, Owner::Host(_));
    let hosts = |ports: &Vec<Owner>| {
        (0..).zip(ports).filter(|(_, owner)| is_host(owner)).map(|(port, _)| port).collect()
    };
    let mut tree: Vec<Vec<u16>> = neighbours.iter().map(hosts).collect();
    let mut seen = vec![false; neighbours.len()];
    for root in 0..neighbours.len() {
        let mut next = VecDeque::from([root]);
        while let Some(switch) = next.pop_front() {
            seen[switch] = true;
            for (port, owner) in (0..).zip(&neighbours[switch]) {
                let Owner::Switch(other) = *owner else { continue };
                let other = other as usize;
                let here = Owner::Switch(switch as u32);
                let back = neighbours[other].iter().position(|owner| *owner == here);
                let Some(back) = back.filter(|_| !seen[other]) else { continue };
                seen[other] = true;
                tree[switch].push(port);
                tree[other].push(back as u16);
                next.push_back(other);
            }
        }
    }
    tree
}

/// How many cables each switch is from a host.
fn distances(host: u32, neighbours: &Neighbours) -> Vec<Option<u32>> {
    let mut distances = vec![None; neighbours.len()];
    let mut next = VecDeque::new();
    for (switch, ports) in neighbours.iter().enumerate() {
        if ports.contains(&Owner::Host(host)) {
            distances[switch] = Some(1);
            next.push_back((switch, 1));
        }
    }
    while let Some((switch, distance)) = next.pop_front() {
        for neighbour in &neighbours[switch] {
            let Owner::Switch(other) = *neighbour else { continue };
            if distances[other as usize].is_none() {
                distances[other as usize] = Some(distance + 1);
                next.push_back((other as usize, distance + 1));
            }
        }
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two switches with a host each, and two more between them.
    fn diamond() -> Neighbours {
        use Owner::{Host, Switch};
        vec![
            vec![Host(0), Switch(2), Switch(3)],
            vec![Host(1), Switch(2), Switch(3)],
            vec![Switch(0), Switch(1)],
            vec![Switch(0), Switch(1)],
        ]
    }

    #[test]
    fn all_shortest_ways_are_used_and_a_flow_keeps_to_one() {
        let routes = Routes::new(2, &diamond(), &[]).unwrap();
        assert_eq!(routes.ports(0, 1), [1, 2]);
        assert_eq!(routes.ports(0, 0), [0]);
        assert_eq!(routes.ports(2, 1), [1]);
        assert_eq!(routes.port(0, 9, 0), None);
        let upper = (0..1_000).filter(|hash| routes.port(0, 1, *hash) == Some(1)).count();
        assert!((400..600).contains(&upper), "{upper}");
        assert_eq!(routes.port(0, 1, 77), routes.port(0, 1, 77));
    }

    #[test]
    fn a_loop_and_a_way_that_is_none_are_refused() {
        let back = [Route { switch: 2, to: 1, via: 0 }];
        assert!(matches!(Routes::new(2, &diamond(), &back), Err(Error::Loop { to: 1, .. })));
        let none = [Route { switch: 0, to: 1, via: 1 }];
        assert!(matches!(Routes::new(2, &diamond(), &none), Err(Error::Route { .. })));
        let lower = [Route { switch: 0, to: 1, via: 3 }];
        assert_eq!(Routes::new(2, &diamond(), &lower).unwrap().ports(0, 1), [2]);
    }
    #[test]
    fn a_flood_reaches_every_host_once_and_ends() {
        let neighbours = diamond();
        let routes = Routes::new(2, &neighbours, &[]).unwrap();
        for host in 0..2 {
            let (mut heard, mut hops) = (Vec::new(), 0);
            // A switch, and from where the frame comes.
            let mut next = vec![(host as usize, Owner::Host(host))];
            while let Some((switch, from)) = next.pop() {
                hops += 1;
                assert!(hops < 9, "it goes round");
                for port in routes.flood(switch as u32) {
                    match neighbours[switch][usize::from(*port)] {
                        to if to == from => {}
                        Owner::Host(other) => heard.push(other),
                        Owner::Switch(other) => {
                            next.push((other as usize, Owner::Switch(switch as u32)));
                        }
                    }
                }
            }
            assert_eq!((heard, hops), (vec![1 - host], 4));
        }
    }
}
