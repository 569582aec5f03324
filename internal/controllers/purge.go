package controllers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
)

// purge deletes all objects of a kind in one namespace. It deletes page by page, because the response
// to DeleteCollection contains the deleted objects.
func purge(ctx context.Context, client metadata.ResourceInterface, options metav1.DeleteOptions) error {
	page := metav1.ListOptions{Limit: 500}
	for {
		listed, err := client.List(ctx, page)
		if err != nil {
			return err
		}
		if len(listed.Items) > 0 {
			if err := client.DeleteCollection(ctx, options, page); err != nil {
				return err
			}
		}
		if page.Continue = listed.Continue; page.Continue == "" {
			return nil
		}
	}
}
