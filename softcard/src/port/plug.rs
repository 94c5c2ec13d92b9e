//! Putting the cables in: from what is asked for to the ports of all cards.

use super::{Cabling, Port, switch};
use crate::{Error, Link};

/// The port of each card, in their order.
///
/// # Errors
/// [`Error::Port`] for a socket that cannot be opened, [`Error::Capture`] for the capture file.
pub fn plug(cabling: Cabling) -> Result<Vec<Box<dyn Port>>, Error> {
    let on_switch = cabling.links.iter().filter(|link| matches!(link, Link::Switch)).count();
    let mut switched = switch(on_switch).into_iter();
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for link in cabling.links {
        match link {
            Link::Switch => {
                if let Some(port) = switched.next() {
                    ports.push(Box::new(port));
                }
            }
            Link::Unix { local, .. } => {
                let source = std::io::ErrorKind::Unsupported.into();
                return Err(Error::Port { path: local, source });
            }
        }
    }
    Ok(ports)
}
