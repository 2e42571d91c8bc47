//! Implements methods of `AsyncWrite` for a wrapper by passing them to a field.

/// The methods of `AsyncWrite` that are named, each passed to the same method of a field.
macro_rules! delegate_write {
    ($field:ident: $($method:ident),+) => {
        $($crate::io::delegate::delegate_write!(@$method $field);)+
    };
    (@poll_write $field:ident) => {
        fn poll_write(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.$field).poll_write(cx, bytes)
        }
    };
    (@poll_write_vectored $field:ident) => {
        fn poll_write_vectored(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            parts: &[std::io::IoSlice<'_>],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.$field).poll_write_vectored(cx, parts)
        }
    };
    (@is_write_vectored $field:ident) => {
        fn is_write_vectored(&self) -> bool {
            self.$field.is_write_vectored()
        }
    };
    (@poll_flush $field:ident) => {
        fn poll_flush(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.$field).poll_flush(cx)
        }
    };
    (@poll_shutdown $field:ident) => {
        fn poll_shutdown(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.$field).poll_shutdown(cx)
        }
    };
}

pub(crate) use delegate_write;
