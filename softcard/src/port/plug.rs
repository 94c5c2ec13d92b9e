//! Plugging the cables: from the links of the command line to the ports of all cards.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use roce::param::ROCE_UDP_PORT;

use super::{
    Cabling, Capture, FaultSource, FaultSpec, Faults, FramePool, PacketPort, PcapngWriter, Port,
    UdpPort, UnixPort, switch, udp::machine,
};
use crate::link::{UdpLink, UdpOptions};
use crate::{Error, Link};

/// The port of each card, in their order; frames come from, and go back to, the pool.
///
/// # Errors
/// [`Error::Port`] for a socket that cannot be opened, [`Error::NoFaultCard`] for faults of a card
/// that is not there, [`Error::BadFault`] for those that its link cannot have, [`Error::Capture`] for the capture file.
pub fn plug(cabling: Cabling, pool: &FramePool) -> Result<Vec<Box<dyn Port>>, Error> {
    let cards = cabling.links.len();
    for fault in &cabling.faults {
        if let Some(card) = fault.card.filter(|card| *card >= cards) {
            return Err(Error::NoFaultCard { fault: fault.to_string(), card, cards });
        }
        fault.check_links(&cabling.links)?;
    }
    let on_switch = cabling.links.iter().filter(|link| matches!(link, Link::Switch)).count();
    let mut switched = switch(on_switch, pool).into_iter();
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for link in cabling.links {
        match link {
            Link::Switch => {
                if let Some(port) = switched.next() {
                    ports.push(Box::new(port));
                }
            }
            Link::Unix { local, remote } => match UnixPort::open(&local, &remote, pool.clone()) {
                Ok(port) => ports.push(Box::new(port)),
                Err(source) => return Err(Error::Port { path: local, source }),
            },
            Link::Packet { device } => match PacketPort::open(&device, pool.clone()) {
                Ok(port) => ports.push(Box::new(port)),
                Err(source) => return Err(Error::Device { device, source }),
            },
            Link::Udp(link, options) => ports.push(Box::new(on_machine(&link, options, pool)?)),
        }
    }
    let ports = ports.into_iter().enumerate();
    let ports = ports
        .map(|(card, port)| with_faults(port, card, &cabling.faults, cabling.seed, pool))
        .collect();
    match cabling.capture {
        Some(path) => capture(ports, &path),
        None => Ok(ports),
    }
}

/// A port on the machine's own network.
fn on_machine(link: &UdpLink, options: UdpOptions, pool: &FramePool) -> Result<UdpPort, Error> {
    let refused = |why| Error::Machine { link: link.to_string(), why };
    let port = options.port.unwrap_or(ROCE_UDP_PORT);
    let device = machine::find(link).map_err(refused)?;
    UdpPort::open(&device, options, pool.clone()).map_err(|error| {
        refused(match error.kind() {
            io::ErrorKind::AddrInUse if options.port.is_none() => {
                "another program has UDP port 4791, by which RoCE v2 arrives: another balboad, or rdma_rxe (rdma link); end it, or write another address, --port udp:ADDRESS"
                    .to_owned()
            }
            io::ErrorKind::AddrInUse => format!(
                "another program has UDP port {port}, by which what PSP seals arrives: another balboad; give both ends another one, --psp-port PORT"
            ),
            io::ErrorKind::PermissionDenied => format!(
                "UDP port {port} takes the capability CAP_NET_BIND_SERVICE; give both ends one from 1024 on, --psp-port PORT, or lower net.ipv4.ip_unprivileged_port_start"
            ),
            _ => error.to_string(),
        })
    })
}

/// The port behind the faults for its card, of which the first is the outermost.
fn with_faults(
    port: Box<dyn Port>,
    card: usize,
    faults: &[FaultSpec],
    seed: u64,
    pool: &FramePool,
) -> Box<dyn Port> {
    let faults: Vec<&FaultSpec> = faults.iter().filter(|fault| fault.is_for(card)).collect();
    for spec in &faults {
        log::info!("card {card}: its cable has faults {spec}, seed {seed}");
    }
    faults.into_iter().enumerate().rev().fold(port, |port, (layer, spec)| {
        Box::new(Faults::new(port, spec, FaultSource { seed, card, layer }, pool))
    })
}

/// Records every port in one file, outside of its faults.
fn capture(ports: Vec<Box<dyn Port>>, path: &Path) -> Result<Vec<Box<dyn Port>>, Error> {
    let names = Capture::interface_names(ports.len());
    let writer = PcapngWriter::create(path, names.iter().map(String::as_str))
        .map_err(|source| Error::Capture { path: path.to_owned(), source })?;
    let writer = Rc::new(RefCell::new(writer));
    let ports = ports.into_iter().zip(0..).map(|(port, card)| {
        Box::new(Capture::new(port, Rc::clone(&writer), card)) as Box<dyn Port>
    });
    Ok(ports.collect())
}

#[cfg(test)]
mod tests;
