//! The parts of SOCKS5 (RFC 1928) that a tool needs: no authentication, `CONNECT`, names and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::ProxyFault;
use crate::HostPort;

/// Reply codes of RFC 1928 §6.
const OK: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS: u8 = 8;

/// Reads greeting and request. If the request can't be served, this function also answers it.
pub(super) async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
) -> Result<HostPort, ProxyFault> {
    let bad = |what: &str| ProxyFault::bad_request("malformed", what);
    read_at_least(stream, buffer, 2).await?;
    let (version, methods) = (buffer.get_u8(), usize::from(buffer.get_u8()));
    if version != 5 {
        return Err(bad("only SOCKS version 5 is spoken here"));
    }
    read_at_least(stream, buffer, methods).await?;
    let offered = buffer.split_to(methods);
    if !offered.contains(&0) {
        write(stream, &[5, 0xff]).await?;
        return Err(bad("SOCKS without authentication is not offered"));
    }
    write(stream, &[5, 0]).await?;

    read_at_least(stream, buffer, 4).await?;
    let (version, command, reserved, kind) =
        (buffer.get_u8(), buffer.get_u8(), buffer.get_u8(), buffer.get_u8());
    if version != 5 || reserved != 0 {
        return Err(bad("the SOCKS request can't be read"));
    }
    if command != 1 {
        send_reply(stream, NO_SUCH_COMMAND).await?;
        return Err(bad("only the SOCKS command CONNECT is served"));
    }
    match kind {
        1 => {
            read_at_least(stream, buffer, 6).await?;
            let address = Ipv4Addr::from_bits(buffer.get_u32());
            Ok(HostPort::of_address(IpAddr::V4(address), buffer.get_u16()))
        }
        4 => {
            read_at_least(stream, buffer, 18).await?;
            let address = Ipv6Addr::from_bits(buffer.get_u128());
            Ok(HostPort::of_address(IpAddr::V6(address), buffer.get_u16()))
        }
        3 => {
            read_at_least(stream, buffer, 1).await?;
            let length = usize::from(buffer.get_u8());
            read_at_least(stream, buffer, length + 2).await?;
            let name = buffer.split_to(length);
            let port = buffer.get_u16();
            let name = std::str::from_utf8(&name).unwrap_or_default(); // silent-ok: then it is no name
            let place = (!name.contains([':', '[', ']']))
                .then(|| HostPort::parse(&format!("{name}:{port}"), None))
                .flatten();
            match place {
                Some(place) => Ok(place),
                None => {
                    send_reply(stream, NOT_ALLOWED).await?;
                    Err(bad("the name in the SOCKS request is not a valid host"))
                }
            }
        }
        _ => {
            send_reply(stream, NO_SUCH_ADDRESS).await?;
            Err(bad("an unknown kind of address in the SOCKS request"))
        }
    }
}

/// Reports success. The connection to the server may be made later, when the first bytes show the protocol.
pub(super) async fn accept_request(stream: &mut TcpStream) -> Result<(), ProxyFault> {
    send_reply(stream, OK).await
}

/// Reports a failure with this reply code.
pub(super) async fn refuse_request(stream: &mut TcpStream, status: u16) {
    let code = if status >= 500 { UNREACHABLE } else { NOT_ALLOWED };
    let _ = send_reply(stream, code).await; // silent-ok: the tool is gone
}

async fn send_reply(stream: &mut TcpStream, code: u8) -> Result<(), ProxyFault> {
    write(stream, &[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), ProxyFault> {
    stream.write_all(bytes).await.map_err(ProxyFault::connection_gone)
}

async fn read_at_least(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
    bytes: usize,
) -> Result<(), ProxyFault> {
    while buffer.len() < bytes {
        if stream
            .read_buf(buffer)
            .await
            .map_err(ProxyFault::connection_gone)?
            == 0
        {
            return Err(ProxyFault::Gone);
        }
    }
    Ok(())
}
