//! Messages between clients and balboad: a decoded message encodes to one that decodes to the same.

use std::fmt::Debug;

use arbitrary::Unstructured;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shim_abi::{Hello, Reply, Request};

use crate::Outcome;

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let variant: u8 = u.int_in_range(0..=24)?;
    let mut bytes = Vec::new();
    match u.int_in_range(0..=3)? {
        // A number that names a variant leads into it.
        0 => bytes.push(variant),
        1 => bytes.extend([0, variant]),
        2 => bytes.extend(shim_abi::hello_frame(&u.arbitrary::<bool>()?)),
        _ => {}
    }
    let rest = u.len();
    bytes.extend(u.bytes(rest)?);
    round_trips::<Request>(&bytes);
    round_trips::<Reply>(&bytes);
    if let Ok(hello) = shim_abi::decode_hello::<Hello>(&bytes) {
        let again = shim_abi::decode_hello::<Hello>(&shim_abi::hello_frame(&hello));
        assert_eq!(again, Ok(hello));
    }
    if let Ok(reply) = shim_abi::decode_hello::<Reply>(&bytes) {
        let again = shim_abi::decode_hello::<Reply>(&shim_abi::hello_frame(&reply));
        assert_eq!(again, Ok(reply));
    }
    Ok(())
}

fn round_trips<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = shim_abi::decode::<T>(bytes) {
        let encoded = shim_abi::encode(&message);
        assert!(!encoded.is_empty() && encoded.len() <= bytes.len());
        assert_eq!(shim_abi::decode::<T>(&encoded), Ok(message));
    }
}
