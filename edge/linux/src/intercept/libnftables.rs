//! libnftables, loaded when needed, so that the program runs where it is not installed.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use libloading::Library;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::InterceptError;

/// The library's name with its ABI version.
const LIBRARY: &str = "libnftables.so.1";

/// `NFT_CTX_DEFAULT` (nftables/libnftables.h): opens the netlink socket at once.
const DEFAULT_CONTEXT: u32 = 0;

/// First descriptor after standard input, output and error.
const FIRST_OTHER_FD: c_uint = 3;

/// libnftables on a thread of its own, with a table of open files of its own.
///
/// The kernel removes a table with `flags owner` when the netlink socket that made it is closed for
/// the last time. libnftables does not mark that socket close-on-exec, so any child process would
/// inherit it, outlive us with it, and keep the table: programs would be sent to a proxy that is
/// gone. In a thread that shares no files with the others no child gets it.
pub(super) struct Nftables {
    /// Closing it ends the thread.
    scripts: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

/// A script, and where the outcome goes.
type Request = (String, mpsc::Sender<Result<String, String>>);

impl Nftables {
    /// Loads the library and opens a context in the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, InterceptError> {
        let (scripts, requests) = mpsc::channel::<Request>();
        let (report, opened) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("nftables".to_owned())
            .spawn(move || {
                let context = leave_shared_files()
                    .map_err(|source| InterceptError::NotIsolated { source })
                    .and_then(|()| Context::open());
                let mut context = match context {
                    Ok(context) => {
                        let _ = report.send(Ok(()));
                        context
                    }
                    Err(error) => {
                        let _ = report.send(Err(error));
                        return;
                    }
                };
                for (script, reply) in requests {
                    // Nobody waits for the outcome when the caller panicked.
                    let _ = reply.send(context.run(&script));
                }
            })
            .map_err(|source| InterceptError::NotIsolated { source })?;
        let nftables = Self { scripts: Some(scripts), thread: Some(thread) };
        opened.recv().unwrap_or(Err(InterceptError::NoContext))?;
        Ok(nftables)
    }

    /// Runs a script as one transaction; gives its output, or what it said went wrong.
    pub(super) fn run(&mut self, script: &str) -> Result<String, String> {
        let (reply, outcome) = mpsc::channel();
        let ended = || "the thread that runs libnftables has ended".to_owned();
        let scripts = self.scripts.as_ref().ok_or_else(ended)?;
        scripts.send((script.to_owned(), reply)).map_err(|_| ended())?;
        outcome.recv().map_err(|_| ended())?
    }
}

impl Drop for Nftables {
    fn drop(&mut self) {
        drop(self.scripts.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that runs libnftables had panicked");
        }
    }
}

/// Gives the calling thread its own table of open files, with only the standard ones in it.
///
/// The others must go: a copy of a connection would keep it open after its owner closed it.
#[expect(unsafe_code, reason = "neither std nor nix offers close_range")]
fn leave_shared_files() -> io::Result<()> {
    // SAFETY: the files are closed in the new table alone, which no other thread uses, and this
    // thread has opened none that it uses later.
    let result =
        unsafe { libc::close_range(FIRST_OTHER_FD, c_uint::MAX, libc::CLOSE_RANGE_UNSHARE.cast_signed()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

type RawContext = *mut c_void;

/// A context of libnftables, and with it the netlink socket that owns our table.
struct Context {
    context: RawContext,
    run: unsafe extern "C" fn(RawContext, *const c_char) -> c_int,
    error_buffer: unsafe extern "C" fn(RawContext) -> *const c_char,
    output_buffer: unsafe extern "C" fn(RawContext) -> *const c_char,
    free: unsafe extern "C" fn(RawContext),
    /// Keeps the functions above mapped.
    _library: Library,
}

impl Context {
    #[expect(unsafe_code, reason = "calls into a C library")]
    fn open() -> Result<Self, InterceptError> {
        let missing = |source| InterceptError::NoLibrary { source };
        // Tried first, because libnftables ends the process when it gets no such socket.
        netlink_sys::Socket::new(NETLINK_NETFILTER).map_err(|_| InterceptError::NoContext)?;
        // SAFETY: the signatures are those of nftables/libnftables.h, which the ABI version in the
        // library's name fixes; its initialisers do nothing beyond registering parsers' tables.
        // The functions stay valid because `_library` lives as long as they do.
        unsafe {
            let library = Library::new(LIBRARY).map_err(missing)?;
            let new: unsafe extern "C" fn(u32) -> RawContext =
                *library.get(b"nft_ctx_new\0").map_err(missing)?;
            let buffer_output: unsafe extern "C" fn(RawContext) -> c_int =
                *library.get(b"nft_ctx_buffer_output\0").map_err(missing)?;
            let buffer_error: unsafe extern "C" fn(RawContext) -> c_int =
                *library.get(b"nft_ctx_buffer_error\0").map_err(missing)?;
            let run = *library.get(b"nft_run_cmd_from_buffer\0").map_err(missing)?;
            let error_buffer = *library.get(b"nft_ctx_get_error_buffer\0").map_err(missing)?;
            let output_buffer = *library.get(b"nft_ctx_get_output_buffer\0").map_err(missing)?;
            let free = *library.get(b"nft_ctx_free\0").map_err(missing)?;

            let context = new(DEFAULT_CONTEXT);
            if context.is_null() {
                return Err(InterceptError::NoContext);
            }
            let opened = Self { context, run, error_buffer, output_buffer, free, _library: library };
            if buffer_output(context) != 0 || buffer_error(context) != 0 {
                return Err(InterceptError::NoContext);
            }
            Ok(opened)
        }
    }

    #[expect(unsafe_code, reason = "calls into a C library")]
    fn run(&mut self, script: &str) -> Result<String, String> {
        let script = CString::new(script).map_err(|_| "the script holds a NUL byte".to_owned())?;
        // SAFETY: the context is live until drop and used by one caller at a time; the script is
        // NUL-terminated and outlives the call; the buffers are NUL-terminated strings, or null
        // when empty, valid until the context is used again, and are copied here.
        unsafe {
            let status = (self.run)(self.context, script.as_ptr());
            let text = |buffer: *const c_char| {
                if buffer.is_null() {
                    String::new()
                } else {
                    CStr::from_ptr(buffer).to_string_lossy().trim().to_owned()
                }
            };
            if status == 0 {
                Ok(text((self.output_buffer)(self.context)))
            } else {
                Err(text((self.error_buffer)(self.context)))
            }
        }
    }
}

impl Drop for Context {
    #[expect(unsafe_code, reason = "calls into a C library")]
    fn drop(&mut self) {
        // SAFETY: the context came from `nft_ctx_new` and is not used after this.
        unsafe { (self.free)(self.context) }
    }
}
