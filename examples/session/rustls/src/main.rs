//! A server for tests, on rustls: FILE CERTIFICATE KEY. It says its port, and hello to everybody.

mod ballast_tickets;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, certificate, key] = arguments.as_slice() else {
        return Err("give FILE CERTIFICATE KEY".into());
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from_pem_file(certificate)?], PrivateKeyDer::from_pem_file(key)?)?;
    config.ticketer = Arc::new(ballast_tickets::Tickets::open(file)?);
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("port {}", listener.local_addr()?.port());
    for socket in listener.incoming() {
        let (socket, config) = (socket?, config.clone());
        std::thread::spawn(move || {
            if let Err(failure) = serve(socket, config) {
                eprintln!("connection: {failure}");
            }
        });
    }
    Ok(())
}

fn serve(mut socket: TcpStream, config: Arc<ServerConfig>) -> Result<(), Failure> {
    let mut connection = ServerConnection::new(config)?;
    let mut stream = Stream::new(&mut connection, &mut socket);
    stream.read(&mut [0; 256])?;
    stream.write_all(b"hello")?;
    stream.conn.send_close_notify();
    stream.flush()?;
    Ok(())
}
