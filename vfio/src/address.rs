//! The address of a PCI function.

use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function, as in `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// As sysfs spells it.
impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = String;

    /// Reads `3b:00.0`, as lspci prints it, or `0000:3b:00.0`.
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            format!("'{text}' is no PCI address; write one as lspci -D shows it, like 0000:3b:00.0")
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':');
    let device = hex(parts.next()?, 2)?;
    let bus = hex(parts.next()?, 2)?;
    let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8))?;
    if parts.next().is_some() || device > 0x1f {
        return None;
    }
    let function = hex(function, 1).filter(|function| *function < 8)?;
    Some(PciAddress {
        domain,
        bus: u8::try_from(bus).ok()?,
        device: u8::try_from(device).ok()?,
        function: u8::try_from(function).ok()?,
    })
}

/// A hexadecimal number of at most `digits` digits, without a sign.
fn hex(text: &str, digits: usize) -> Option<u32> {
    let fits = !text.is_empty() && text.len() <= digits;
    let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (fits && plain).then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_with_and_without_its_domain() {
        let text = |text: &str| text.parse::<PciAddress>().map(|it| it.to_string());
        assert_eq!(text("3b:00.0").unwrap(), "0000:3b:00.0");
        assert_eq!(text("0001:3B:1f.7").unwrap(), "0001:3b:1f.7");
        assert_eq!(text("10000:00:00.0").unwrap(), "10000:00:00.0");
        for wrong in
            ["", "3b:00", "3b:00.8", "3b:20.0", "+b:00.0", "1:2:3:4.0", "../00:00.0", "é:00.0"]
        {
            assert!(text(wrong).unwrap_err().contains("no PCI address"), "{wrong}");
        }
    }
}
