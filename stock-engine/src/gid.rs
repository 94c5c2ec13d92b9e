//! GIDs of IPv4 addresses, which are all that a published card has.

/// The IPv4 address of a GID, as a number.
pub(crate) fn ipv4_of(gid: [u8; 16]) -> Option<u32> {
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let [head @ .., a, b, c, d] = gid;
    (head == mapped).then(|| u32::from_be_bytes([a, b, c, d]))
}

/// The GID of an IPv4 address.
pub(crate) fn gid_of(ipv4: u32) -> [u8; 16] {
    let [a, b, c, d] = ipv4.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}
