// Why somebody changes the fleet, in their words.
package api

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"connectrpc.com/connect"
)

// CommentHeader of a request to the fleet API says why, percent-encoded. Controllers have it in the history, others in their logs.
const CommentHeader = "Ballast-Comment"

// MaxComment bounds a comment, in bytes.
const MaxComment = 200

// CheckComment refuses what is no line of text.
func CheckComment(text string) error {
	if len(text) > MaxComment {
		return fmt.Errorf("the comment has %d bytes, at most %d are kept", len(text), MaxComment)
	}
	if strings.ToValidUTF8(text, "") != text || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("the comment %q has more than one line, or what cannot be printed", text)
	}
	return nil
}

// WithComment has a client of the fleet API say why it changes something; empty: it does not say.
func WithComment(text string) connect.ClientOption {
	if text == "" {
		return connect.WithClientOptions()
	}
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			request.Header().Set(CommentHeader, url.QueryEscape(text))
			return next(ctx, request)
		}
	}))
}

// commented adds to a caller why it calls.
func commented() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			escaped := request.Header().Get(CommentHeader)
			if escaped == "" {
				return next(ctx, request)
			}
			text, err := url.QueryUnescape(escaped)
			if err == nil {
				err = CheckComment(text)
			}
			if err != nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s: %w", CommentHeader, err))
			}
			if by, ok := CallerOf(ctx); ok {
				by.Comment = text
				ctx = WithCaller(ctx, by)
			}
			return next(ctx, request)
		}
	}
}
