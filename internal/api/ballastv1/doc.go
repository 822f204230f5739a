// Package ballastv1 is the control protocol, generated from ballast.proto by `make generate`.
package ballastv1

//go:generate go build -o ../../../bin/protoc/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
//go:generate protoc --plugin=../../../bin/protoc/protoc-gen-go --plugin=../../../bin/protoc/protoc-gen-connect-go --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative,simple ballast.proto
