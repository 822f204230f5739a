module github.com/tmc/grpc-websocket-proxy

go 1.26.0
