//! An HTTP/3 server of a lab, on quinn: ADDRESS NAME CERTIFICATE FILE, whose connection ids name it by the agent's FILE.

mod ballast_ids;

use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use quinn::crypto::rustls::QuicServerConfig;
use rustls::pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer};
use tokio::time::{sleep, sleep_until, Instant};

type Failure = Box<dyn Error + Send + Sync>;
type Resolver = h3::server::RequestResolver<h3_quinn::Connection, Bytes>;
type Stream = h3::server::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

const OFTEN: Duration = Duration::from_millis(20); // that the file is looked for
static PIECE: [u8; 8 << 10] = [0; 8 << 10]; // of an answer

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, name, certificate, file] = arguments.as_slice() else {
        return Err("give ADDRESS NAME CERTIFICATE FILE".into());
    };
    let ids = loop {
        match ballast_ids::Ids::open(file) {
            Err(missing) if missing.kind() == ErrorKind::NotFound => sleep(OFTEN).await, // an agent that starts writes it
            read => break read?,
        }
    };
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(format!("{certificate}.crt"))?],
            PrivateKeyDer::from_pem_file(format!("{certificate}.key"))?,
        )?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.token_key(ids.token_key());
    let endpoint =
        quinn::Endpoint::new(ids.endpoint_config(), Some(config), UdpSocket::bind(address)?, Arc::new(quinn::TokioRuntime))?;
    while let Some(incoming) = endpoint.accept().await {
        let name: Arc<str> = name.as_str().into();
        tokio::spawn(async move {
            if let Err(failure) = serve(incoming, name).await {
                eprintln!("connection: {failure}");
            }
        });
    }
    Ok(())
}

async fn serve(incoming: quinn::Incoming, name: Arc<str>) -> Result<(), Failure> {
    let mut connection = h3::server::Connection::new(h3_quinn::Connection::new(incoming.await?)).await?;
    while let Some(resolver) = connection.accept().await? {
        let name = name.clone();
        tokio::spawn(async move {
            if let Err(failure) = answer(resolver, &name).await {
                eprintln!("request: {failure}");
            }
        });
    }
    Ok(())
}

async fn answer(resolver: Resolver, name: &str) -> Result<(), Failure> {
    let (request, mut stream) = resolver.resolve_request().await?;
    let range = request.headers().get("range").and_then(|range| range.to_str().ok());
    let wanted = range.and_then(|range| range.strip_prefix("bytes=0-")?.parse::<u64>().ok()?.checked_add(1));
    let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    let rate = match path.as_slice() {
        ["slow", rate, "blob"] => rate.parse::<u64>().ok().filter(|rate| *rate > 0),
        _ => None,
    };
    match (request.method(), path.as_slice(), wanted) {
        (&Method::PUT, ["upload", ..], _) => {
            while stream.recv_data().await?.is_some() {}
            begin(&mut stream, name, StatusCode::NO_CONTENT).await?;
        }
        (&Method::GET, ["name"], _) => {
            begin(&mut stream, name, StatusCode::OK).await?;
            stream.send_data(format!("{name}\n").into()).await?;
        }
        (&Method::GET, ["blob"], Some(wanted)) => send(&mut stream, name, wanted, None).await?,
        (&Method::GET, ["slow", ..], Some(wanted)) if rate.is_some() => send(&mut stream, name, wanted, rate).await?,
        _ => begin(&mut stream, name, StatusCode::BAD_REQUEST).await?,
    }
    Ok(stream.finish().await?)
}

async fn begin(stream: &mut Stream, name: &str, status: StatusCode) -> Result<(), Failure> {
    Ok(stream.send_response(Response::builder().status(status).header("x-server", name).body(())?).await?)
}

/// Answers with so many bytes, at a rate in bytes per second; none: at once.
async fn send(stream: &mut Stream, name: &str, wanted: u64, rate: Option<u64>) -> Result<(), Failure> {
    begin(stream, name, StatusCode::OK).await?;
    let (start, mut sent) = (Instant::now(), 0);
    while sent < wanted {
        let some = PIECE.len().min((wanted - sent) as usize);
        stream.send_data(Bytes::from_static(&PIECE[..some])).await?;
        sent += some as u64;
        if let Some(rate) = rate.filter(|_| sent < wanted) {
            sleep_until(start + Duration::from_secs_f64(sent as f64 / rate as f64)).await;
        }
    }
    Ok(())
}
