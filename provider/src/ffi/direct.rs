//! Verbs that only this provider has, for programs that include `balboa_dv.h`.

use std::ffi::{CStr, c_char, c_void};

use shim_abi::{MAX_SETTING, ServiceChain, ServiceSide};

use crate::abi::verbs::{ibv_context, ibv_qp, ibv_qp_init_attr_ex};

use super::{object, qp};
use crate::error::{Result, invalid, unsupported};

/// Names, and settings, that are looked at. A chain has fewer.
const MOST: u32 = 64;

/// `struct balboa_dv_setting`.
#[repr(C)]
struct Setting {
    name: *const c_char,
    value: *const c_void,
    length: u64,
}

/// `struct balboa_dv_services`.
#[repr(C)]
struct Services {
    comp_mask: u64,
    names: *const *const c_char,
    settings: *const Setting,
    num_names: u32,
    num_settings: u32,
    side: u32,
    reserved: u32,
}

/// Makes a queue pair that has services: `balboa_dv_create_qp`.
///
/// # Safety
/// The program passes a context of this provider, attributes as for `ibv_create_qp_ex`, and services as `balboa_dv.h`
/// describes them, or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn balboa_dv_create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    services: *const Services,
) -> *mut ibv_qp {
    // SAFETY: as the caller promises.
    let made = unsafe { services.as_ref() }
        .ok_or_else(|| invalid!("no services are named"))
        // SAFETY: as the caller promises.
        .and_then(|services| unsafe { chain(services) })
        // SAFETY: as the caller promises.
        .and_then(|chain| unsafe { qp::create_ex(context, &mut *attr, Some(chain)) });
    object("balboa_dv_create_qp", made)
}

/// The services as balboad takes them.
///
/// # Safety
/// Its pointers are as `balboa_dv.h` describes them.
unsafe fn chain(services: &Services) -> Result<ServiceChain> {
    if services.comp_mask != 0 || services.reserved != 0 {
        return Err(unsupported!("comp_mask {:#x} has unknown bits", services.comp_mask));
    }
    let side = match services.side {
        0 => ServiceSide::Both,
        1 => ServiceSide::Requester,
        2 => ServiceSide::Responder,
        side => return Err(invalid!("side {side} is none of the two, nor both")),
    };
    // SAFETY: as the caller promises.
    let names = unsafe { list(services.names, services.num_names, "names") }?;
    // SAFETY: as the caller promises.
    let settings = unsafe { list(services.settings, services.num_settings, "settings") }?;
    // SAFETY: as the caller promises.
    let names = names.iter().map(|name| unsafe { text(*name) });
    let setting = |setting: &Setting| {
        let length = usize::try_from(setting.length).unwrap_or(usize::MAX);
        if length > MAX_SETTING {
            return Err(invalid!("a setting has {length} bytes; {MAX_SETTING} are the most"));
        }
        let value = match setting.value.is_null() {
            true if length > 0 => return Err(invalid!("a setting of {length} bytes is nowhere")),
            true => Vec::new(),
            // SAFETY: as the caller promises.
            false => unsafe { std::slice::from_raw_parts(setting.value.cast(), length) }.to_vec(),
        };
        // SAFETY: as the caller promises.
        Ok((unsafe { text(setting.name) }?, value))
    };
    let settings: Vec<(String, Vec<u8>)> = settings.iter().map(setting).collect::<Result<_>>()?;
    let bytes = settings.iter().map(|(_, value)| value.len()).fold(0, usize::saturating_add);
    if bytes > MAX_SETTING {
        return Err(invalid!("the settings have {bytes} bytes; {MAX_SETTING} are the most"));
    }
    Ok(ServiceChain { services: names.collect::<Result<_>>()?, settings, side })
}

/// A list that a program passes, by its address and its length.
///
/// # Safety
/// There are so many values there, if any.
unsafe fn list<'a, T>(first: *const T, count: u32, what: &str) -> Result<&'a [T]> {
    if count > MOST {
        return Err(invalid!("{count} {what} of services are more than there can be"));
    }
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid!("{count} {what} of services are nowhere")),
        // SAFETY: as the caller promises; it is not null.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(first, count as usize) }),
    }
}

/// A text that a program passes.
///
/// # Safety
/// It is zero-terminated, or null.
unsafe fn text(text: *const c_char) -> Result<String> {
    if text.is_null() {
        return Err(invalid!("a name of services is nowhere"));
    }
    // SAFETY: as the caller promises; it is not null.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(str::to_owned).map_err(|_| invalid!("the name {text:?} is no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(services: &Services) -> String {
        // SAFETY: the pointers of tests are null, or point to what they say.
        unsafe { chain(services) }.unwrap_err().to_string()
    }

    fn none() -> Services {
        let (names, settings) = (std::ptr::null(), std::ptr::null());
        Services {
            comp_mask: 0,
            names,
            settings,
            num_names: 0,
            num_settings: 0,
            side: 0,
            reserved: 0,
        }
    }

    #[test]
    fn services_are_taken_as_the_header_has_them() {
        let (names, value) = ([c"inspect".as_ptr()], b"text");
        let setting = |name: &CStr, length| Setting {
            name: name.as_ptr(),
            value: value.as_ptr().cast(),
            length,
        };
        let settings = [setting(c"patterns", 4), setting(c"mode", 1)];
        let services = Services {
            names: names.as_ptr(),
            settings: settings.as_ptr(),
            num_names: 1,
            num_settings: 2,
            side: 2,
            ..none()
        };
        // SAFETY: they point to what they say.
        let taken = unsafe { chain(&services) }.unwrap();
        let settings = vec![("patterns".into(), value.to_vec()), ("mode".into(), vec![b't'])];
        let side = ServiceSide::Responder;
        assert_eq!(taken, ServiceChain { services: vec!["inspect".into()], settings, side });
    }

    #[test]
    fn what_is_no_list_or_unknown_is_refused() {
        assert!(refused(&Services { comp_mask: 2, ..none() }).contains("comp_mask 0x2"));
        assert!(refused(&Services { reserved: 1, ..none() }).contains("unknown bits"));
        assert!(refused(&Services { side: 3, ..none() }).contains("side 3"));
        assert!(refused(&Services { num_names: 1, ..none() }).contains("nowhere"));
        assert!(refused(&Services { num_settings: 65, ..none() }).contains("more than"));
        let long = [Setting { name: c"x".as_ptr(), value: std::ptr::null(), length: 1 << 20 }];
        let long = Services { settings: long.as_ptr(), num_settings: 1, ..none() };
        assert!(refused(&long).contains("32768 are the most"));
        let nameless = [std::ptr::null()];
        assert!(
            refused(&Services { names: nameless.as_ptr(), num_names: 1, ..none() })
                .contains("nowhere")
        );
    }
}
