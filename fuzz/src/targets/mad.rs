//! Messages of the connection manager: parsed without a panic, and back to the bytes they came from.

use arbitrary::Unstructured;
use cm::ServiceId;
use cm::presence::Presence;
use cm::wire::{Attribute, Body, IpHeader, LENGTH, Message};

use crate::Outcome;

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let mut bytes = Vec::new();
    if u.ratio(7, 8)? {
        // The head of a datagram that gets further than random bytes do.
        bytes.extend([1, 7, 2, 3, 0, 0, 0, 0]);
        bytes.extend(u.bytes(8)?);
        bytes.extend([0, u.int_in_range(0x0f..=0x1b)?]);
    }
    let rest = u.len().min(LENGTH + 8);
    bytes.extend(u.bytes(rest)?);
    if u.ratio(7, 8).unwrap_or(true) {
        bytes.resize(LENGTH, 0);
    }
    let Ok(message) = Message::parse(&bytes) else { return Ok(()) };
    assert_eq!(bytes.len(), LENGTH, "a message of another length");
    let again = message.to_bytes();
    assert_eq!(Message::parse(&again), Ok(message), "a message does not round trip");
    assert_eq!(again[..4], bytes[..4], "another class");
    assert_eq!(again[8..18], bytes[8..18], "another transaction or attribute");
    let zeros = again.iter().zip(&bytes).all(|(mine, theirs)| mine & !theirs == 0);
    assert!(zeros, "a bit that was not there");
    let attribute = message.body.attribute();
    assert!((Attribute::REQ..=Attribute::APR).contains(&attribute));
    let (service, private_data) = match &message.body {
        Body::Req(req) => (req.service_id, &req.private_data[..]),
        Body::SidrReq(req) => (req.service_id, &req.private_data[..]),
        Body::SidrRep(rep) => {
            if let Some(presence) = Presence::parse(&rep.private_data) {
                let again = Presence::parse(&presence.to_bytes());
                assert_eq!(again, Some(presence), "who is there does not round trip");
            }
            return Ok(());
        }
        _ => return Ok(()),
    };
    if let Some((space, port)) = ServiceId(service).port() {
        assert_eq!(ServiceId::new(space, port).0, service);
    }
    if let Ok(header) = IpHeader::parse(private_data) {
        assert_eq!(IpHeader::parse(&header.to_bytes()), Ok(header), "addresses do not round trip");
    }
    Ok(())
}
