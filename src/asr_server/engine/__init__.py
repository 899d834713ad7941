"""Audio to text on an accelerator. Knows no request, route or event loop; its heavy libraries load with the model."""
