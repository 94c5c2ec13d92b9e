//! Putting the cables in: from what is asked for to the ports of all cards.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use super::{Cabling, Capture, FramePool, PcapngWriter, Port, UnixPort, switch};
use crate::{Error, Link};

/// The port of each card, in their order; frames come from, and go back to, the pool.
///
/// # Errors
/// [`Error::Port`] for a socket that cannot be opened, [`Error::Capture`] for the capture file.
pub fn plug(cabling: Cabling, pool: &FramePool) -> Result<Vec<Box<dyn Port>>, Error> {
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
        }
    }
    match cabling.capture {
        Some(path) => capture(ports, &path),
        None => Ok(ports),
    }
}

/// Records every port in one file, as interfaces `card0`, `card1` and so on.
fn capture(ports: Vec<Box<dyn Port>>, path: &Path) -> Result<Vec<Box<dyn Port>>, Error> {
    let names: Vec<String> = (0..ports.len()).map(|card| format!("card{card}")).collect();
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
