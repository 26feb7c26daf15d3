"""What a message holds: a file a shape. How it is written is the encoding's business."""
